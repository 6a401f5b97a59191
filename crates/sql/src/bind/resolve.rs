//! Which function or operator a name and the types of its arguments mean.
//!
//! The rules are those of PostgreSQL's `parse_func.c` and `parse_oper.c`: an exact match wins; then the candidates
//! that the arguments can be converted to; among several of those the one that converts least, prefers preferred
//! types, and guesses what literals of unknown type are.

use super::coerce::{can_coerce, can_coerce_all, category, common_type, is_preferred};
use super::{Binder, Result};
use crate::builtins::{self, CastContext, Function, Operator};
use crate::tree::{Display, Expr, ExprKind};
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;

/// A function with its parameters laid out for a number of arguments.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub function: &'static Function,
    /// One type for each argument: variadic parameters are repeated, defaulted ones left out.
    pub args: Vec<Oid>,
    /// How many of the arguments, from the end, are elements of the variadic array.
    pub variadic: usize,
    /// How many parameters, from the end, get their defaults.
    pub defaulted: usize,
}

/// What choosing among candidates came to.
pub(super) enum Choice<T> {
    One(T),
    None,
    Ambiguous,
}

/// `func_select_candidate` over anything that has parameter types.
fn choose<T>(inputs: &[Oid], mut candidates: Vec<T>, args: impl Fn(&T) -> Vec<Oid>) -> Choice<T> {
    let single = |candidates: &mut Vec<T>| if candidates.len() == 1 { candidates.pop() } else { None };
    candidates.retain(|c| can_coerce_all(inputs, &args(c), CastContext::Implicit));
    if candidates.is_empty() {
        return Choice::None;
    }
    if let Some(one) = single(&mut candidates) {
        return Choice::One(one);
    }
    let exact = |types: &[Oid]| inputs.iter().zip(types).filter(|(i, t)| **i != types::UNKNOWN && i == t).count();
    keep_best(&mut candidates, |c| exact(&args(c)));
    if let Some(one) = single(&mut candidates) {
        return Choice::One(one);
    }
    let preferred = |types: &[Oid]| {
        let fits = |i: Oid, t: Oid| i != types::UNKNOWN && (i == t || is_preferred(category(i), t));
        inputs.iter().zip(types).filter(|(i, t)| fits(**i, **t)).count()
    };
    keep_best(&mut candidates, |c| preferred(&args(c)));
    if let Some(one) = single(&mut candidates) {
        return Choice::One(one);
    }
    if !inputs.contains(&types::UNKNOWN) {
        return Choice::Ambiguous;
    }
    guess_unknowns(inputs, &mut candidates, &args);
    if let Some(one) = single(&mut candidates) {
        return Choice::One(one);
    }
    assume_known(inputs, &mut candidates, &args);
    match single(&mut candidates) {
        Some(one) => Choice::One(one),
        None => Choice::Ambiguous,
    }
}

fn keep_best<T>(candidates: &mut Vec<T>, score: impl Fn(&T) -> usize) {
    let best = candidates.iter().map(&score).max().unwrap_or(0);
    candidates.retain(|c| score(c) == best);
}

/// For each literal of unknown type, the category that the candidates agree on, or strings if any takes strings.
fn guess_unknowns<T>(inputs: &[Oid], candidates: &mut Vec<T>, args: &impl Fn(&T) -> Vec<Oid>) {
    let mut slots = Vec::new();
    for at in (0..inputs.len()).filter(|at| inputs[*at] == types::UNKNOWN) {
        match slot(candidates.iter().map(|c| args(c)[at])) {
            Some((category, preferred)) => slots.push((at, category, preferred)),
            None => return,
        }
    }
    let fits = |types: &[Oid]| {
        slots.iter().all(|(at, wanted, preferred)| {
            category(types[*at]) == *wanted && (!preferred || is_preferred(*wanted, types[*at]))
        })
    };
    if candidates.iter().any(|c| fits(&args(c))) {
        candidates.retain(|c| fits(&args(c)));
    }
}

fn slot(mut types: impl Iterator<Item = Oid>) -> Option<(u8, bool)> {
    let first = types.next()?;
    let mut slot = (category(first), is_preferred(category(first), first));
    let mut conflict = false;
    for oid in types {
        let this = category(oid);
        if this == slot.0 {
            slot.1 |= is_preferred(this, oid);
        } else if this == b'S' {
            slot = (this, is_preferred(this, oid));
        } else {
            conflict = true;
        }
    }
    (!conflict || slot.0 == b'S').then_some(slot)
}

/// If all known arguments have one type, the unknown ones are assumed to have it, too.
fn assume_known<T>(inputs: &[Oid], candidates: &mut Vec<T>, args: &impl Fn(&T) -> Vec<Oid>) {
    let mut known = inputs.iter().filter(|i| **i != types::UNKNOWN);
    let Some(first) = known.next() else { return };
    if known.any(|other| other != first) {
        return;
    }
    let assumed = vec![*first; inputs.len()];
    let fits = |c: &T| can_coerce_all(&assumed, &args(c), CastContext::Implicit);
    if candidates.iter().filter(|c| fits(c)).count() == 1 {
        candidates.retain(fits);
    }
}

/// The functions of a name that take so many arguments.
fn candidates(name: &str, count: usize, explode_variadic: bool) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for function in builtins::functions_named(name) {
        let declared = function.args.len();
        if declared >= count && count + function.defaults.len() >= declared {
            let args = function.args[..count].to_vec();
            found.push(Candidate { function, args, variadic: 0, defaulted: declared - count });
        }
        let Some(element) = function.variadic.filter(|_| explode_variadic && count >= declared && declared > 0) else {
            continue;
        };
        let variadic = count - (declared - 1);
        let fixed = &function.args[..declared - 1];
        let args: Vec<Oid> = fixed.iter().copied().chain(std::iter::repeat_n(element, variadic)).collect();
        // A function that takes the elements as they are is preferred to one that packs them.
        if element != types::ANY {
            found.retain(|c| !(c.function.oid == function.oid && c.variadic == 0 && c.args == args));
        }
        if !found.iter().any(|c| c.args == args && c.variadic == 0) {
            found.push(Candidate { function, args, variadic, defaulted: 0 });
        }
    }
    found
}

/// The function that a name means for these arguments.
pub(super) fn function(name: &str, inputs: &[Oid], explode_variadic: bool) -> Choice<Candidate> {
    let mut all = candidates(name, inputs.len(), explode_variadic);
    // With VARIADIC the array is given as it is: only variadic functions are meant.
    if !explode_variadic {
        all.retain(|c| c.function.variadic.is_some());
    }
    if let Some(at) = all.iter().position(|c| c.args == inputs) {
        return Choice::One(all.swap_remove(at));
    }
    choose(inputs, all, |c| c.args.clone())
}

fn exact_operator(name: &str, left: Option<Oid>, right: Oid) -> Option<&'static Operator> {
    builtins::operators_named(name).iter().copied().find(|o| o.left == left && o.right == right)
}

pub(super) fn binary_operator(name: &str, left: Oid, right: Oid) -> Choice<&'static Operator> {
    let (l, r) = match (left, right) {
        (types::UNKNOWN, other) | (other, types::UNKNOWN) => (other, other),
        pair => pair,
    };
    if let Some(exact) = exact_operator(name, Some(l), r) {
        return Choice::One(exact);
    }
    let all: Vec<_> = builtins::operators_named(name).iter().copied().filter(|o| o.left.is_some()).collect();
    choose(&[left, right], all, |o| o.left.into_iter().chain([o.right]).collect())
}

pub(super) fn prefix_operator(name: &str, right: Oid) -> Choice<&'static Operator> {
    if let Some(exact) = exact_operator(name, None, right) {
        return Choice::One(exact);
    }
    let all: Vec<_> = builtins::operators_named(name).iter().copied().filter(|o| o.left.is_none()).collect();
    choose(&[right], all, |o| vec![o.right])
}

/// The function by which values of a type are equal: of its own operator, or that of a type it converts to.
pub(super) fn equality(oid: Oid) -> Result<Oid> {
    match binary_operator("=", oid, oid) {
        Choice::One(operator) if operator.result == types::BOOL => Ok(operator.function),
        _ => {
            let message = format!("could not identify an equality operator for type {}", builtins::type_name(oid));
            Err(SqlError::new("42883", message))
        }
    }
}

/// Values of a type can be ordered if it has a `<`.
pub(super) fn check_orderable(oid: Oid) -> Result<()> {
    match binary_operator("<", oid, oid) {
        Choice::One(_) if !matches!(oid, types::JSON | types::XML) => Ok(()),
        _ => {
            let message = format!("could not identify an ordering operator for type {}", builtins::type_name(oid));
            let hint = "Use an explicit ordering operator or modify the query.";
            Err(SqlError::new("42883", message).with_hint(hint))
        }
    }
}

/// `check_generic_type_consistency`: whether polymorphic parameters could be what the arguments are.
pub(super) fn generics_agree(actual: &[Oid], declared: &[Oid]) -> bool {
    if !declared.iter().any(|oid| builtins::is_polymorphic(*oid)) {
        return true;
    }
    matches!(Generics::collect(actual, declared), Some(generics) if generics.is_consistent())
}

/// What the polymorphic parameters of a call stand for.
#[derive(Debug, Default)]
pub(super) struct Generics {
    element: Option<Oid>,
    array: Option<Oid>,
    non_array: bool,
    compatible: Vec<Oid>,
    compatible_non_array: bool,
    has_first: bool,
    has_compatible: bool,
}

impl Generics {
    fn collect(actual: &[Oid], declared: &[Oid]) -> Option<Generics> {
        let mut found = Generics::default();
        for (actual, declared) in actual.iter().zip(declared) {
            found.has_first |= builtins::is_polymorphic_first(*declared);
            found.has_compatible |= builtins::is_polymorphic_compatible(*declared);
            found.non_array |= *declared == types::ANYNONARRAY;
            found.compatible_non_array |= *declared == types::ANYCOMPATIBLENONARRAY;
            if *actual != types::UNKNOWN {
                found.add(*actual, *declared)?;
            }
        }
        Some(found)
    }

    fn add(&mut self, actual: Oid, declared: Oid) -> Option<()> {
        match declared {
            types::ANYELEMENT | types::ANYNONARRAY => agree(&mut self.element, actual),
            types::ANYARRAY => {
                builtins::element_of(actual)?;
                agree(&mut self.array, actual)
            }
            types::ANYCOMPATIBLE | types::ANYCOMPATIBLENONARRAY => {
                self.compatible.push(actual);
                Some(())
            }
            types::ANYCOMPATIBLEARRAY => {
                self.compatible.push(builtins::element_of(actual)?);
                Some(())
            }
            oid if builtins::is_polymorphic(oid) => None,
            _ => Some(()),
        }
    }

    fn is_consistent(&self) -> bool {
        let of_array = self.array.and_then(builtins::element_of);
        let agrees = match (self.element, of_array) {
            (Some(element), Some(of_array)) => element == of_array,
            _ => true,
        };
        let element = self.element.or(of_array);
        let non_array = !self.non_array || element.is_none_or(|oid| builtins::element_of(oid).is_none());
        agrees && non_array && self.compatible_is_consistent()
    }

    fn compatible_is_consistent(&self) -> bool {
        if self.compatible.is_empty() {
            return true;
        }
        let Ok(common) = common_type(&self.compatible) else { return false };
        let all = self.compatible.iter().all(|oid| can_coerce(*oid, common, CastContext::Implicit));
        all && (!self.compatible_non_array || builtins::element_of(common).is_none())
    }

    /// What the calls' parameters stand for: `enforce_generic_type_consistency`.
    fn resolve(actual: &[Oid], declared: &[Oid]) -> Result<Resolved> {
        let alike = || SqlError::new("42804", "arguments declared \"anyelement\" are not all alike");
        let found = Generics::collect(actual, declared).ok_or_else(alike)?;
        let element = found.element.or(found.array.and_then(builtins::element_of));
        if found.has_first && element.is_none() {
            let message = "could not determine polymorphic type because input has type unknown";
            return Err(SqlError::new("42804", message));
        }
        let compatible = match found.has_compatible {
            true => Some(common_type(&found.compatible).map_err(|_| alike())?),
            false => None,
        };
        Ok(Resolved { element, compatible })
    }
}

fn agree(slot: &mut Option<Oid>, actual: Oid) -> Option<()> {
    match *slot {
        Some(known) => (known == actual).then_some(()),
        None => {
            *slot = Some(actual);
            Some(())
        }
    }
}

struct Resolved {
    element: Option<Oid>,
    compatible: Option<Oid>,
}

impl Resolved {
    fn of(&self, declared: Oid) -> Result<Oid> {
        let family = if builtins::is_polymorphic_compatible(declared) { self.compatible } else { self.element };
        let array = matches!(declared, types::ANYARRAY | types::ANYCOMPATIBLEARRAY);
        match (family, array) {
            (Some(element), false) => Ok(element),
            (Some(element), true) => builtins::array_of(element).ok_or_else(|| {
                let name = builtins::type_name(element);
                SqlError::new("42704", format!("could not find array type for data type {name}"))
            }),
            (None, _) => Err(SqlError::new("42804", "could not determine polymorphic type")),
        }
    }
}

/// The actual types of parameters and result, where they are polymorphic.
pub(super) fn resolve_generics(actual: &[Oid], declared: &[Oid], returns: Oid) -> Result<(Vec<Oid>, Oid)> {
    let any = declared.iter().chain([&returns]).any(|oid| builtins::is_polymorphic(*oid));
    if !any {
        return Ok((declared.to_vec(), returns));
    }
    let resolved = Generics::resolve(actual, declared)?;
    let actual_of = |oid: &Oid| if builtins::is_polymorphic(*oid) { resolved.of(*oid) } else { Ok(*oid) };
    let args = declared.iter().map(actual_of).collect::<Result<Vec<Oid>>>()?;
    Ok((args, actual_of(&returns)?))
}

pub(super) const FUNCTION_HINT: &str =
    "No function matches the given name and argument types. You might need to add explicit type casts.";

/// `name(type, type)`, as messages show a call.
pub(super) fn signature(name: &str, inputs: &[Oid]) -> String {
    let inputs: Vec<String> = inputs.iter().map(|oid| builtins::type_name(*oid)).collect();
    format!("{name}({})", inputs.join(", "))
}

impl Binder<'_> {
    /// `left op right`, or `op right`.
    pub(super) fn operator(&mut self, name: &str, left: Option<Expr>, right: Expr, location: i32) -> Result<Expr> {
        let inputs: Vec<Oid> = left.iter().map(|expr| expr.ty.oid).chain([right.ty.oid]).collect();
        let choice = match &left {
            Some(left) => binary_operator(name, left.ty.oid, right.ty.oid),
            None => prefix_operator(name, right.ty.oid),
        };
        let operator = self.chosen_operator(choice, name, &inputs, location)?;
        let args: Vec<Expr> = left.into_iter().chain([right]).collect();
        self.apply_operator(operator, args).map_err(|error| self.at(error, location))
    }

    pub(super) fn chosen_operator(
        &self,
        choice: Choice<&'static Operator>,
        name: &str,
        inputs: &[Oid],
        location: i32,
    ) -> Result<&'static Operator> {
        let (sqlstate, says, hint) = match choice {
            Choice::One(operator) => return Ok(operator),
            Choice::None => (
                "42883",
                "operator does not exist",
                "No operator matches the given name and argument types. You might need to add explicit type casts.",
            ),
            Choice::Ambiguous => (
                "42725",
                "operator is not unique",
                "Could not choose a best candidate operator. You might need to add explicit type casts.",
            ),
        };
        let names: Vec<String> = inputs.iter().map(|oid| builtins::type_name(*oid)).collect();
        let shown = match names.as_slice() {
            [left, right] => format!("{left} {name} {right}"),
            [right] => format!("{name} {right}"),
            _ => name.to_string(),
        };
        Err(self.at(SqlError::new(sqlstate, format!("{says}: {shown}")).with_hint(hint), location))
    }

    fn apply_operator(&mut self, operator: &'static Operator, args: Vec<Expr>) -> Result<Expr> {
        let actual: Vec<Oid> = args.iter().map(|expr| expr.ty.oid).collect();
        let declared: Vec<Oid> = operator.left.into_iter().chain([operator.right]).collect();
        let (declared, result) = resolve_generics(&actual, &declared, operator.result)?;
        let args = self.coerce_args(args, &declared)?;
        let display = Display::Operator(operator.name.into());
        Ok(Expr::new(ExprKind::Call { function: operator.function, display, args }, Type::of(result)))
    }

    pub(super) fn coerce_args(&mut self, args: Vec<Expr>, declared: &[Oid]) -> Result<Vec<Expr>> {
        let mut coerced = Vec::with_capacity(args.len());
        for (arg, declared) in args.into_iter().zip(declared) {
            let arg = self.coerce(arg, *declared, CastContext::Implicit)?;
            // `"any"` takes whatever comes, but a literal must be something.
            coerced.push(if *declared == types::ANY { self.resolve_unknown(arg)? } else { arg });
        }
        Ok(coerced)
    }
}

/// Whether evaluating it twice may give two values.
pub(super) fn is_volatile(expr: &Expr) -> bool {
    let mut volatile = false;
    super::walk::each(expr, &mut |expr| {
        if let ExprKind::Call { function, .. } = &expr.kind {
            volatile |= builtins::function(*function).is_none_or(|f| f.volatility == builtins::Volatility::Volatile);
        }
        super::walk::Go::Deeper
    });
    volatile
}
