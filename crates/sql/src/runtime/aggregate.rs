//! Aggregates: one value from the values of many rows.
//!
//! An [`Accumulator`] is stepped with each row's arguments, nulls included; what a null means is its own affair. The
//! caller orders, filters and makes distinct, and for ordered-set aggregates steps with the sorted column's value.

use super::numeric::Number;
use super::{Env, Result, at, compare, dates, documents, float, numeric_value, text, unexpected};
use crate::text::json;
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::interval::Interval;
use isles_kernel::value::Value;
use num_bigint::BigInt;

/// The state of one group.
pub trait Accumulator: Send {
    fn step(&mut self, env: &mut Env<'_>, args: &[Value]) -> std::result::Result<(), SqlError>;

    /// Takes a row away that was stepped before, for windows that move. Most cannot; the caller starts over then.
    fn inverse(&mut self, _env: &mut Env<'_>, _args: &[Value]) -> std::result::Result<(), SqlError> {
        Err(SqlError::unsupported("this aggregate cannot take rows away"))
    }

    fn value(&self, env: &mut Env<'_>) -> std::result::Result<Value, SqlError>;
}

pub struct Aggregate {
    pub oid: Oid,
    /// Whether [`Accumulator::inverse`] works.
    pub invertible: bool,
    kind: Kind,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    CountAll,
    Count,
    Sum,
    SumBig,
    SumNumeric,
    SumFloat,
    SumReal,
    SumInterval,
    Average,
    AverageFloat,
    AverageInterval,
    Least,
    Greatest,
    And,
    Or,
    BitAnd,
    BitOr,
    BitXor,
    Deviation { sample: bool, root: bool },
    FloatDeviation { sample: bool, root: bool },
    JoinText,
    JoinBytes,
    ArrayOf,
    Document { binary: bool },
    ObjectOf { binary: bool },
    Regression(Regression),
    Percentile { continuous: bool },
    Mode,
}

#[derive(Clone, Copy)]
pub(super) enum Regression {
    Count,
    Sxx,
    Syy,
    Sxy,
    AverageX,
    AverageY,
    R2,
    Slope,
    Intercept,
    CovariancePopulation,
    CovarianceSample,
    Correlation,
}

impl Aggregate {
    pub(super) const fn new(oid: u32, kind: Kind) -> Aggregate {
        let invertible = matches!(
            kind,
            Kind::CountAll
                | Kind::Count
                | Kind::Sum
                | Kind::SumBig
                | Kind::SumNumeric
                | Kind::SumInterval
                | Kind::Average
                | Kind::AverageInterval
        );
        Aggregate { oid: Oid(oid), invertible, kind }
    }

    /// A group without rows. `types` are those of the arguments; for an ordered-set aggregate, `direct` are the values
    /// that stand in its parentheses, and the types those of the sorted columns.
    pub fn start(&self, types: &[Oid], direct: &[Value]) -> Box<dyn Accumulator> {
        let ty = types.first().copied().unwrap_or(TEXT);
        match self.kind {
            Kind::CountAll => Box::new(Count { all: true, rows: 0 }),
            Kind::Count => Box::new(Count { all: false, rows: 0 }),
            Kind::Sum => Box::new(Integers { rows: 0, sum: 0, big: false }),
            Kind::SumBig => Box::new(Integers { rows: 0, sum: 0, big: true }),
            Kind::SumNumeric => Box::new(Numbers::new(Number::value_of_sum)),
            Kind::Average => Box::new(Numbers::new(Number::value_of_average)),
            Kind::SumFloat => Box::new(Floats { rows: 0, sum: 0.0, how: FloatSum::Double }),
            Kind::SumReal => Box::new(Floats { rows: 0, sum: 0.0, how: FloatSum::Real }),
            Kind::AverageFloat => Box::new(Floats { rows: 0, sum: 0.0, how: FloatSum::Average }),
            Kind::SumInterval => Box::new(Intervals { rows: 0, sum: Interval::default(), average: false }),
            Kind::AverageInterval => Box::new(Intervals { rows: 0, sum: Interval::default(), average: true }),
            Kind::Least => Box::new(Extreme { ty, least: true, best: Value::Null }),
            Kind::Greatest => Box::new(Extreme { ty, least: false, best: Value::Null }),
            Kind::And => Box::new(Bits { state: Value::Null, merge: |a, b| a & b }),
            Kind::Or => Box::new(Bits { state: Value::Null, merge: |a, b| a | b }),
            Kind::BitAnd => Box::new(Bits { state: Value::Null, merge: |a, b| a & b }),
            Kind::BitOr => Box::new(Bits { state: Value::Null, merge: |a, b| a | b }),
            Kind::BitXor => Box::new(Bits { state: Value::Null, merge: |a, b| a ^ b }),
            Kind::Deviation { sample, root } => Box::new(Squares::new(sample, root)),
            Kind::FloatDeviation { sample, root } => {
                Box::new(FloatSquares { rows: 0.0, sum: 0.0, squares: 0.0, sample, root })
            }
            Kind::JoinText => Box::new(JoinText { joined: None }),
            Kind::JoinBytes => Box::new(JoinBytes { joined: None }),
            Kind::ArrayOf => Box::new(ArrayOf { members: vec![], rows: 0 }),
            Kind::Document { binary } => Box::new(Documents { ty, binary, text: None }),
            Kind::ObjectOf { binary } => Box::new(Objects { types: types.to_vec(), binary, text: None }),
            Kind::Regression(what) => Box::new(Pairs { what, n: 0.0, x: 0.0, xx: 0.0, y: 0.0, yy: 0.0, xy: 0.0 }),
            Kind::Percentile { continuous } => {
                Box::new(Percentile { direct: at(direct, 0).clone(), continuous, sorted: vec![] })
            }
            Kind::Mode => Box::new(Mode { ty, sorted: vec![] }),
        }
    }
}

/// The aggregate of this number, if it is computed here.
pub fn aggregate(function: Oid) -> Option<&'static Aggregate> {
    let table = super::table::AGGREGATES;
    table.binary_search_by_key(&function.0, |aggregate| aggregate.oid.0).ok().map(|at| &table[at])
}

/// One group's rows and bytes are in memory; more of them are a mistake, and would take the memory of all.
const MAX_COLLECTED: usize = 10_000_000;

fn check_collected(count: usize) -> Result<()> {
    match count >= MAX_COLLECTED {
        true => Err(SqlError::new("54000", format!("an aggregate collects at most {MAX_COLLECTED} values"))),
        false => Ok(()),
    }
}

struct Count {
    all: bool,
    rows: i64,
}

impl Accumulator for Count {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        self.rows += i64::from(self.all || !at(args, 0).is_null());
        Ok(())
    }

    fn inverse(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        self.rows -= i64::from(self.all || !at(args, 0).is_null());
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        Ok(Value::Int(self.rows))
    }
}

struct Integers {
    rows: u64,
    sum: i128,
    big: bool,
}

impl Accumulator for Integers {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if let Value::Int(n) = at(args, 0) {
            self.sum += i128::from(*n);
            self.rows += 1;
        }
        Ok(())
    }

    fn inverse(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if let Value::Int(n) = at(args, 0) {
            self.sum -= i128::from(*n);
            self.rows -= 1;
        }
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        if self.rows == 0 {
            return Ok(Value::Null);
        }
        if self.big {
            return Ok(numeric_value(Number::Finite(super::numeric::Decimal::new(self.sum, 0))));
        }
        super::arithmetic::sized::<8>(Some(self.sum))
    }
}

struct Numbers {
    rows: i64,
    finite: Number,
    /// The largest scale of the inputs, which the sum keeps even when they are taken away.
    not_finite: [i64; 3],
    finish: fn(&Numbers) -> Result<Value>,
}

impl Numbers {
    fn new(finish: fn(&Numbers) -> Result<Value>) -> Numbers {
        Numbers { rows: 0, finite: Number::int(0), not_finite: [0; 3], finish }
    }

    fn change(&mut self, value: &Value, by: i64) -> Result<()> {
        let number = match value {
            Value::Null => return Ok(()),
            Value::Numeric(n) => Number::of(n),
            Value::Int(n) => Number::int(*n),
            other => return Err(unexpected(other)),
        };
        self.rows += by;
        match number {
            Number::NaN => self.not_finite[0] += by,
            Number::Infinity => self.not_finite[1] += by,
            Number::MinusInfinity => self.not_finite[2] += by,
            number if by > 0 => self.finite = self.finite.added(&number)?,
            number => self.finite = self.finite.subtracted(&number)?,
        }
        Ok(())
    }

    fn sum(&self) -> Number {
        match self.not_finite {
            [0, 0, 0] => self.finite.clone(),
            [0, _, 0] => Number::Infinity,
            [0, 0, _] => Number::MinusInfinity,
            _ => Number::NaN,
        }
    }
}

impl Number {
    fn value_of_sum(state: &Numbers) -> Result<Value> {
        Ok(if state.rows == 0 { Value::Null } else { numeric_value(state.sum()) })
    }

    fn value_of_average(state: &Numbers) -> Result<Value> {
        match state.rows {
            0 => Ok(Value::Null),
            rows => state.sum().divided(&Number::int(rows)).map(numeric_value),
        }
    }
}

impl Accumulator for Numbers {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        self.change(at(args, 0), 1)
    }

    fn inverse(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        self.change(at(args, 0), -1)
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        (self.finish)(self)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum FloatSum {
    Double,
    Real,
    Average,
}

struct Floats {
    rows: u64,
    sum: f64,
    how: FloatSum,
}

impl Accumulator for Floats {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if at(args, 0).is_null() {
            return Ok(());
        }
        let x = float(args, 0)?;
        let finite = self.sum.is_finite() && x.is_finite();
        self.sum = if self.how == FloatSum::Real { f64::from(self.sum as f32 + x as f32) } else { self.sum + x };
        self.rows += 1;
        if self.sum.is_infinite() && finite { Err(super::arithmetic::overflowed()) } else { Ok(()) }
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        Ok(match (self.rows, self.how) {
            (0, _) => Value::Null,
            (rows, FloatSum::Average) => Value::Float(self.sum / rows as f64),
            _ => Value::Float(self.sum),
        })
    }
}

struct Intervals {
    rows: i64,
    sum: Interval,
    average: bool,
}

impl Accumulator for Intervals {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if let Value::Interval(interval) = at(args, 0) {
            self.sum = dates::sum_intervals(&self.sum, interval)?;
            self.rows += 1;
        }
        Ok(())
    }

    fn inverse(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if let Value::Interval(interval) = at(args, 0) {
            self.sum = dates::difference_of_intervals(&self.sum, interval)?;
            self.rows -= 1;
        }
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        match (self.rows, self.average) {
            (0, _) => Ok(Value::Null),
            (rows, true) => dates::quotient(&self.sum, rows as f64).map(Value::Interval),
            _ => Ok(Value::Interval(self.sum)),
        }
    }
}

struct Extreme {
    ty: Oid,
    least: bool,
    best: Value,
}

impl Accumulator for Extreme {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        let value = at(args, 0);
        if value.is_null() {
            return Ok(());
        }
        let better = match self.best.is_null() {
            true => true,
            false => {
                let order = compare(value, &self.best, self.ty)?;
                // Of equal values that differ (1.0 and 1.00) the last one stays.
                if self.least { order.is_le() } else { order.is_ge() }
            }
        };
        if better {
            self.best = value.clone();
        }
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        Ok(self.best.clone())
    }
}

struct Bits {
    state: Value,
    merge: fn(i64, i64) -> i64,
}

impl Accumulator for Bits {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        self.state = match (&self.state, at(args, 0)) {
            (_, Value::Null) => return Ok(()),
            (Value::Null, first) => first.clone(),
            (Value::Int(a), Value::Int(b)) => Value::Int((self.merge)(*a, *b)),
            (Value::Bool(a), Value::Bool(b)) => Value::Bool((self.merge)((*a).into(), (*b).into()) != 0),
            (other, _) => return Err(unexpected(other)),
        };
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        Ok(self.state.clone())
    }
}

/// Variance and deviation, exactly: n Σx² - (Σx)².
struct Squares {
    rows: i64,
    sum: Number,
    squares: Number,
    sample: bool,
    root: bool,
}

impl Squares {
    fn new(sample: bool, root: bool) -> Squares {
        Squares { rows: 0, sum: Number::int(0), squares: Number::int(0), sample, root }
    }
}

impl Accumulator for Squares {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if at(args, 0).is_null() {
            return Ok(());
        }
        let x = super::number(args, 0)?;
        self.squares = self.squares.added(&x.multiplied(&x)?)?;
        self.sum = self.sum.added(&x)?;
        self.rows += 1;
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        if self.rows == 0 || (self.sample && self.rows == 1) {
            return Ok(Value::Null);
        }
        let n = Number::int(self.rows);
        let top = n.multiplied(&self.squares)?.subtracted(&self.sum.multiplied(&self.sum)?)?;
        if top.is_nan() {
            return Ok(numeric_value(Number::NaN));
        }
        if top.sign() <= 0 {
            return Ok(numeric_value(Number::int(0)));
        }
        let bottom = n.multiplied(&Number::int(self.rows - i64::from(self.sample)))?;
        let variance = top.divided(&bottom)?;
        if !self.root {
            return Ok(numeric_value(variance));
        }
        Ok(numeric_value(variance.root_of_same_scale()))
    }
}

/// As PostgreSQL, by Youngs and Cramer: stable where the plain sum of squares is not.
struct FloatSquares {
    rows: f64,
    sum: f64,
    squares: f64,
    sample: bool,
    root: bool,
}

impl Accumulator for FloatSquares {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if at(args, 0).is_null() {
            return Ok(());
        }
        let x = float(args, 0)?;
        self.rows += 1.0;
        self.sum += x;
        if self.rows > 1.0 {
            let distance = x * self.rows - self.sum;
            self.squares += distance * distance / (self.rows * (self.rows - 1.0));
        } else if !x.is_finite() {
            self.squares = f64::NAN;
        }
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        if self.rows == 0.0 || (self.sample && self.rows <= 1.0) {
            return Ok(Value::Null);
        }
        let variance = self.squares / (self.rows - if self.sample { 1.0 } else { 0.0 });
        Ok(Value::Float(if self.root { variance.sqrt() } else { variance }))
    }
}

struct JoinText {
    joined: Option<String>,
}

impl Accumulator for JoinText {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if at(args, 0).is_null() {
            return Ok(());
        }
        let piece = text(args, 0)?;
        match &mut self.joined {
            None => self.joined = Some(piece.to_string()),
            Some(joined) => {
                if !at(args, 1).is_null() {
                    joined.push_str(text(args, 1)?);
                }
                joined.push_str(piece);
                super::check_length(joined.len())?;
            }
        }
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        Ok(self.joined.clone().map_or(Value::Null, Value::Text))
    }
}

struct JoinBytes {
    joined: Option<Vec<u8>>,
}

impl Accumulator for JoinBytes {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if at(args, 0).is_null() {
            return Ok(());
        }
        let piece = super::bytes(args, 0)?;
        match &mut self.joined {
            None => self.joined = Some(piece.to_vec()),
            Some(joined) => {
                if !at(args, 1).is_null() {
                    joined.extend_from_slice(super::bytes(args, 1)?);
                }
                joined.extend_from_slice(piece);
                super::check_length(joined.len())?;
            }
        }
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        Ok(self.joined.clone().map_or(Value::Null, Value::Bytes))
    }
}

struct ArrayOf {
    members: Vec<Value>,
    rows: usize,
}

impl Accumulator for ArrayOf {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        check_collected(self.members.len())?;
        if matches!(at(args, 0), Value::Array(_)) {
            return Err(SqlError::unsupported("arrays of more than one dimension are not supported"));
        }
        self.members.push(at(args, 0).clone());
        self.rows += 1;
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        Ok(if self.rows == 0 { Value::Null } else { Value::Array(self.members.clone()) })
    }
}

struct Documents {
    ty: Oid,
    binary: bool,
    text: Option<String>,
}

impl Accumulator for Documents {
    fn step(&mut self, env: &mut Env<'_>, args: &[Value]) -> Result<()> {
        let text = self.text.get_or_insert_with(String::new);
        if !text.is_empty() {
            text.push_str(", ");
        }
        documents::write(text, at(args, 0), self.ty, env)?;
        super::check_length(text.len())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        match &self.text {
            None => Ok(Value::Null),
            Some(text) if self.binary => json::canonical_text(&format!("[{text}]")).map(Value::Json),
            Some(text) => Ok(Value::Json(format!("[{text}]"))),
        }
    }
}

struct Objects {
    types: Vec<Oid>,
    binary: bool,
    text: Option<String>,
}

impl Accumulator for Objects {
    fn step(&mut self, env: &mut Env<'_>, args: &[Value]) -> Result<()> {
        let text = self.text.get_or_insert_with(String::new);
        if !text.is_empty() {
            text.push_str(", ");
        }
        let ty = |at: usize| self.types.get(at).copied().unwrap_or(TEXT);
        if at(args, 0).is_null() {
            return Err(SqlError::new("22023", "field name must not be null"));
        }
        documents::write_key(text, at(args, 0), ty(0), env)?;
        text.push_str(if self.binary { ": " } else { " : " });
        documents::write(text, at(args, 1), ty(1), env)?;
        super::check_length(text.len())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        match &self.text {
            None => Ok(Value::Null),
            Some(text) if self.binary => json::canonical_text(&format!("{{{text}}}")).map(Value::Json),
            Some(text) => Ok(Value::Json(format!("{{ {text} }}"))),
        }
    }
}

/// Sums over pairs, as PostgreSQL keeps them.
struct Pairs {
    what: Regression,
    n: f64,
    x: f64,
    xx: f64,
    y: f64,
    yy: f64,
    xy: f64,
}

impl Accumulator for Pairs {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        if at(args, 0).is_null() || at(args, 1).is_null() {
            return Ok(());
        }
        let (y, x) = (float(args, 0)?, float(args, 1)?);
        self.n += 1.0;
        self.x += x;
        self.y += y;
        if self.n > 1.0 {
            let (dx, dy) = (x * self.n - self.x, y * self.n - self.y);
            let scale = 1.0 / (self.n * (self.n - 1.0));
            self.xx += dx * dx * scale;
            self.yy += dy * dy * scale;
            self.xy += dx * dy * scale;
        } else {
            if !x.is_finite() {
                (self.xx, self.xy) = (f64::NAN, f64::NAN);
            }
            if !y.is_finite() {
                (self.yy, self.xy) = (f64::NAN, f64::NAN);
            }
        }
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        let some = |x: f64| Ok(Value::Float(x));
        if let Regression::Count = self.what {
            return Ok(Value::Int(self.n as i64));
        }
        if self.n < 1.0 {
            return Ok(Value::Null);
        }
        match self.what {
            Regression::Count => Ok(Value::Null),
            Regression::Sxx => some(self.xx),
            Regression::Syy => some(self.yy),
            Regression::Sxy => some(self.xy),
            Regression::AverageX => some(self.x / self.n),
            Regression::AverageY => some(self.y / self.n),
            Regression::CovariancePopulation => some(self.xy / self.n),
            Regression::CovarianceSample if self.n < 2.0 => Ok(Value::Null),
            Regression::CovarianceSample => some(self.xy / (self.n - 1.0)),
            Regression::Correlation if self.xx == 0.0 || self.yy == 0.0 => Ok(Value::Null),
            Regression::Correlation => some(self.xy / (self.xx * self.yy).sqrt()),
            _ if self.xx == 0.0 => Ok(Value::Null),
            Regression::R2 if self.yy == 0.0 => some(1.0),
            Regression::R2 => some(self.xy * self.xy / (self.xx * self.yy)),
            Regression::Slope => some(self.xy / self.xx),
            Regression::Intercept => some((self.y - self.x * self.xy / self.xx) / self.n),
        }
    }
}

/// Values arrive in order, nulls left out.
struct Percentile {
    direct: Value,
    continuous: bool,
    sorted: Vec<Value>,
}

impl Percentile {
    fn one(&self, fraction: &Value) -> Result<Value> {
        if fraction.is_null() || self.sorted.is_empty() {
            return Ok(Value::Null);
        }
        let fraction = float(std::slice::from_ref(fraction), 0)?;
        if !(0.0..=1.0).contains(&fraction) {
            let mut shown = String::new();
            isles_kernel::form::write_double(&mut shown, fraction);
            return Err(SqlError::new("22003", format!("percentile value {shown} is not between 0 and 1")));
        }
        let count = self.sorted.len() as f64;
        if !self.continuous {
            let row = (fraction * count).ceil().max(1.0) as usize;
            return Ok(self.sorted[row - 1].clone());
        }
        let place = fraction * (count - 1.0);
        let (low, high) = (place.floor(), place.ceil());
        let (first, second) = (&self.sorted[low as usize], &self.sorted[high as usize]);
        match (first, second) {
            _ if low == high => Ok(first.clone()),
            (Value::Float(a), Value::Float(b)) => Ok(Value::Float(a + (place - low) * (b - a))),
            (Value::Interval(a), Value::Interval(b)) => {
                let distance = dates::scaled(&dates::difference_of_intervals(b, a)?, place - low)?;
                dates::sum_intervals(a, &distance).map(Value::Interval)
            }
            (other, _) => Err(unexpected(other)),
        }
    }
}

impl Accumulator for Percentile {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        check_collected(self.sorted.len())?;
        if !at(args, 0).is_null() {
            self.sorted.push(at(args, 0).clone());
        }
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        match &self.direct {
            Value::Array(_) if self.sorted.is_empty() => Ok(Value::Null),
            Value::Array(fractions) => {
                fractions.iter().map(|fraction| self.one(fraction)).collect::<Result<_>>().map(Value::Array)
            }
            fraction => self.one(fraction),
        }
    }
}

struct Mode {
    ty: Oid,
    sorted: Vec<Value>,
}

impl Accumulator for Mode {
    fn step(&mut self, _: &mut Env<'_>, args: &[Value]) -> Result<()> {
        check_collected(self.sorted.len())?;
        if !at(args, 0).is_null() {
            self.sorted.push(at(args, 0).clone());
        }
        Ok(())
    }

    fn value(&self, _: &mut Env<'_>) -> Result<Value> {
        let (mut best, mut most) = (Value::Null, 0);
        let mut start = 0;
        for at in 1..=self.sorted.len() {
            let ends = at == self.sorted.len() || compare(&self.sorted[start], &self.sorted[at], self.ty)?.is_ne();
            if ends {
                if at - start > most {
                    (best, most) = (self.sorted[start].clone(), at - start);
                }
                start = at;
            }
        }
        Ok(best)
    }
}

impl Number {
    /// The root with the scale that the number has.
    fn root_of_same_scale(&self) -> Number {
        match self {
            Number::Finite(n) => {
                let lifted: BigInt = &n.digits * super::numeric::power_of_ten(i64::from(n.scale)) * 4;
                Number::Finite(super::numeric::Decimal::new((lifted.sqrt() + 1) / 2, n.scale))
            }
            other => other.clone(),
        }
    }
}
