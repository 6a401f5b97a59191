//! Subqueries in expressions.

use super::super::call::{self, Callee, Op};
use super::super::native::{self, Class};
use super::from::{Rows, rows_of};
use super::{Printer, Result, unsupported};
use crate::tree::{Expr, ExprKind, Quantifier, Query, RelId, Subquery, SubqueryKind};
use crate::types::{BOOL, Oid, Type};

impl Printer {
    pub(super) fn subquery(&mut self, of: &Subquery, ty: Type) -> Result<String> {
        let query = &of.query;
        match &of.kind {
            SubqueryKind::Scalar => self.scalar(query),
            SubqueryKind::Exists { negated } => {
                let rows = self.query(query, query.columns.len())?;
                Ok(format!("({}EXISTS ({rows}))", if *negated { "NOT " } else { "" }))
            }
            SubqueryKind::In { left, equal, negated } => {
                let word = if *negated { "NOT IN" } else { "IN" };
                match self.native_in(left, equal, query, word)? {
                    Some(text) => Ok(text),
                    None => self.foreign_in(left, equal, query, *negated),
                }
            }
            SubqueryKind::Quantified { quantifier, left, function, .. } => {
                self.quantified(*quantifier, query, |printer, column| printer.compared(*function, left, column))
            }
            SubqueryKind::Array => {
                let element =
                    query.columns.first().map(|column| column.ty.oid).ok_or_else(|| unsupported("ARRAY()"))?;
                let rows = self.query(query, query.columns.len())?;
                let callee = Callee { op: Op::ArrayOfRows, args: vec![element], result: ty, settings: false };
                // An aggregate of no rows is not told what it is.
                Ok(format!("coalesce((SELECT {}('{callee}', c0) FROM ({rows})), '{{}}')", call::AGGREGATE))
            }
        }
    }

    /// SQLite takes the first row of many; PostgreSQL says that there are too many.
    fn scalar(&mut self, query: &Query) -> Result<String> {
        let rows = self.query(query, query.columns.len())?;
        Ok(match rows_of(query) {
            Rows::Any => format!("(SELECT {}(c0) FROM ({rows}))", call::ONE),
            Rows::One | Rows::AtMostOne => format!("({rows})"),
        })
    }

    fn native_in(&mut self, left: &[Expr], equal: &[Oid], query: &Query, word: &str) -> Result<Option<String>> {
        let mut parts = Vec::new();
        for (part, function) in left.iter().zip(equal) {
            let Some(class) = native::equality(*function, part.ty.oid) else { return Ok(None) };
            let text = self.expr(part)?;
            parts.push(match class {
                Class::Collated(collation) => format!("{text} COLLATE {collation}"),
                _ => text,
            });
        }
        let rows = self.query(query, query.columns.len())?;
        let left = if parts.len() == 1 { parts.remove(0) } else { format!("({})", parts.join(", ")) };
        Ok(Some(format!("({left} {word} ({rows}))")))
    }

    fn foreign_in(&mut self, left: &[Expr], equal: &[Oid], query: &Query, negated: bool) -> Result<String> {
        let ([left], [function]) = (left, equal) else {
            return Err(unsupported("IN of rows with values of such types"));
        };
        let text =
            self.quantified(Quantifier::Any, query, |printer, column| printer.compared(*function, left, column))?;
        Ok(if negated { format!("(NOT {text})") } else { text })
    }

    /// Whether a comparison holds for any or for all rows; unknown if that depends on one that is unknown.
    fn quantified(
        &mut self,
        quantifier: Quantifier,
        query: &Query,
        compare: impl FnOnce(&mut Printer, &Expr) -> Result<String>,
    ) -> Result<String> {
        let ty = query.columns.first().map(|column| column.ty).ok_or_else(|| unsupported("ANY of no column"))?;
        let rows = self.query(query, query.columns.len())?;
        // A number that no relation of the statement has.
        let rel = RelId(u32::MAX - self.names.len() as u32);
        self.names.insert(rel, super::Names::Numbered { alias: "q".into(), ordinality: None });
        let compared = compare(self, &Expr::new(ExprKind::Column { rel, column: 0 }, ty))?;
        let (decided, result, otherwise) = match quantifier {
            Quantifier::Any => ("max(p) = 1", 1, 0),
            Quantifier::All => ("min(p) = 0", 0, 1),
        };
        Ok(format!(
            "(SELECT CASE WHEN {decided} THEN {result} WHEN count(*) > count(p) THEN NULL ELSE {otherwise} END \
             FROM (SELECT {compared} AS p FROM ({rows}) AS q))"
        ))
    }

    fn compared(&mut self, function: Oid, left: &Expr, right: &Expr) -> Result<String> {
        self.call(function, &[left.clone(), right.clone()], Type::of(BOOL))
    }
}
