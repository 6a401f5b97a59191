//! What a result's column is called when nobody has said: PostgreSQL's `FigureColname`.

use pg_raw_parse::Node;
use pg_raw_parse::nodes::{A_Expr_Kind, MinMaxOp, SQLValueFunctionOp as ValueOp, SelectStmt, SubLinkType};

const NAMELESS: &str = "?column?";

pub(super) fn of_target(node: Node<'_>) -> String {
    name_of(node).map_or_else(|| NAMELESS.to_string(), |(name, _)| name)
}

/// How good a name is: a type's name gives way to a better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Weak,
    Strong,
}

fn strong(name: &str) -> Option<(String, Strength)> {
    Some((name.to_string(), Strength::Strong))
}

fn name_of(node: Node<'_>) -> Option<(String, Strength)> {
    match node {
        Node::ColumnRef(column) => column.fields().iter().filter_map(Node::as_str).next_back().and_then(strong),
        Node::A_Indirection(indirection) => {
            match indirection.indirection().iter().filter_map(Node::as_str).next_back() {
                Some(name) => strong(name),
                None => name_of(indirection.arg()),
            }
        }
        Node::FuncCall(call) => call.funcname().iter().filter_map(Node::as_str).next_back().and_then(strong),
        Node::A_Expr(expr) if expr.kind == A_Expr_Kind::AEXPR_NULLIF => strong("nullif"),
        Node::TypeCast(cast) => match name_of(cast.arg()) {
            Some((name, Strength::Strong)) => strong(&name),
            _ => {
                let name = cast.type_name()?.names().iter().filter_map(|part| part.sval()).next_back()?;
                Some((name.to_string(), Strength::Weak))
            }
        },
        Node::CollateClause(collate) => name_of(collate.arg()),
        Node::GroupingFunc(_) => strong("grouping"),
        Node::SubLink(link) => match (link.sub_link_type, link.subselect()) {
            (SubLinkType::EXISTS_SUBLINK, _) => strong("exists"),
            (SubLinkType::ARRAY_SUBLINK, _) => strong("array"),
            (SubLinkType::EXPR_SUBLINK, Node::SelectStmt(select)) => strong(&first_column(select)?),
            _ => None,
        },
        Node::CaseExpr(case) => match name_of(case.defresult()) {
            Some((name, Strength::Strong)) => strong(&name),
            _ => Some(("case".to_string(), Strength::Weak)),
        },
        Node::A_ArrayExpr(_) => strong("array"),
        Node::RowExpr(_) => strong("row"),
        Node::CoalesceExpr(_) => strong("coalesce"),
        Node::MinMaxExpr(extreme) => strong(if extreme.op == MinMaxOp::IS_GREATEST { "greatest" } else { "least" }),
        Node::SQLValueFunction(value) => strong(value_name(value.op)),
        _ => None,
    }
}

fn first_column(select: &SelectStmt) -> Option<String> {
    if let Some(left) = select.larg() {
        return first_column(left);
    }
    if !select.values_lists().is_empty() {
        return Some("column1".to_string());
    }
    let target = select.target_list().iter().next()?;
    Some(target.name().map_or_else(|| of_target(target.val()), str::to_string))
}

fn value_name(op: ValueOp::Type) -> &'static str {
    match op {
        ValueOp::SVFOP_CURRENT_DATE => "current_date",
        ValueOp::SVFOP_CURRENT_TIME | ValueOp::SVFOP_CURRENT_TIME_N => "current_time",
        ValueOp::SVFOP_CURRENT_TIMESTAMP | ValueOp::SVFOP_CURRENT_TIMESTAMP_N => "current_timestamp",
        ValueOp::SVFOP_LOCALTIME | ValueOp::SVFOP_LOCALTIME_N => "localtime",
        ValueOp::SVFOP_LOCALTIMESTAMP | ValueOp::SVFOP_LOCALTIMESTAMP_N => "localtimestamp",
        ValueOp::SVFOP_CURRENT_ROLE => "current_role",
        ValueOp::SVFOP_CURRENT_USER => "current_user",
        ValueOp::SVFOP_USER => "user",
        ValueOp::SVFOP_SESSION_USER => "session_user",
        ValueOp::SVFOP_CURRENT_CATALOG => "current_catalog",
        _ => "current_schema",
    }
}
