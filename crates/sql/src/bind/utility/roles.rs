//! Roles and rights.

use super::{
    GrantObject, GrantRights, PasswordOption, RoleOptions, RoleSetting, RoleStatement, SetValue, Utility, session,
};
use isles_kernel::error::SqlError;
use pg_raw_parse::Node;
use pg_raw_parse::nodes::{self, DefElem};
use pg_raw_parse::raw::{GrantTargetType, ObjectType, RoleSpecType, RoleStmtType};

type Result<T> = std::result::Result<T, SqlError>;

pub(super) fn create(statement: &nodes::CreateRoleStmt) -> Result<Utility> {
    let name = statement.role().unwrap_or_default();
    check_name(name)?;
    let mut options =
        RoleOptions { user: statement.stmt_type == RoleStmtType::ROLESTMT_USER, ..RoleOptions::default() };
    statement.options().iter().try_for_each(|option| take(&mut options, option))?;
    Ok(Utility::Role(RoleStatement::Create { name: name.into(), options }))
}

/// As PostgreSQL: its own prefix is reserved.
fn check_name(name: &str) -> Result<()> {
    if name.starts_with("pg_") {
        let error = SqlError::new("42939", format!("role name \"{name}\" is reserved"));
        return Err(error.with_detail("Role names starting with \"pg_\" are reserved."));
    }
    Ok(())
}

pub(super) fn alter(statement: &nodes::AlterRoleStmt) -> Result<Utility> {
    let Some(role) = statement.role() else { return Err(SqlError::unsupported("ALTER ROLE ALL is not supported")) };
    let mut options = RoleOptions::default();
    statement.options().iter().try_for_each(|option| take(&mut options, option))?;
    Ok(Utility::Role(RoleStatement::Alter { name: role_name(role)?, options }))
}

pub(super) fn configure(statement: &nodes::AlterRoleSetStmt) -> Result<Utility> {
    let Some(role) = statement.role() else { return Err(SqlError::unsupported("ALTER ROLE ALL is not supported")) };
    if statement.database().is_some() {
        return Err(SqlError::unsupported("ALTER ROLE … IN DATABASE is not supported"));
    }
    let Some(set) = statement.setstmt() else { return Err(SqlError::new("42601", "a setting is missing")) };
    let setting = match session::set(set)? {
        Utility::Set { name, value: SetValue::Text(value), .. } => RoleSetting::Set(name, value),
        Utility::Set { name, value: SetValue::Default, .. } | Utility::Reset { name } => RoleSetting::Reset(name),
        Utility::ResetAll => RoleSetting::ResetAll,
        _ => return Err(SqlError::unsupported("this setting of a role is not supported")),
    };
    Ok(Utility::Role(RoleStatement::Configure { name: role_name(role)?, setting }))
}

fn take(options: &mut RoleOptions, option: &DefElem) -> Result<()> {
    let on = Some(matches!(option.arg(), Node::Boolean(value) if value.boolval));
    let text = || option.arg().as_str().map(str::to_string);
    match option.defname().unwrap_or_default() {
        "canlogin" => options.login = on,
        "superuser" => options.superuser = on,
        "createrole" => options.create_role = on,
        "createdb" => options.create_db = on,
        "inherit" => options.inherit = on,
        "connectionlimit" => match option.arg() {
            Node::Integer(limit) => options.connection_limit = Some(limit.ival),
            _ => return Err(SqlError::new("22023", "invalid connection limit")),
        },
        "password" => options.password = Some(text().map_or(PasswordOption::Clear, PasswordOption::Set)),
        "validUntil" => options.valid_until = text(),
        other => return Err(SqlError::unsupported(format!("role option \"{other}\" is not supported"))),
    }
    Ok(())
}

pub(super) fn drop(statement: &nodes::DropRoleStmt) -> Result<Utility> {
    let names = roles(statement.roles().iter())?;
    Ok(Utility::Role(RoleStatement::Drop { names, if_exists: statement.missing_ok }))
}

fn roles<'a>(nodes: impl Iterator<Item = Node<'a>>) -> Result<Vec<String>> {
    let name = |node| match node {
        Node::RoleSpec(role) => role_name(role),
        Node::AccessPriv(right) => Ok(right.priv_name().unwrap_or_default().into()),
        _ => Err(SqlError::unsupported("this form of a role's name is not supported")),
    };
    nodes.map(name).collect()
}

/// A role's name; the words for roles of the session stay words.
fn role_name(role: &nodes::RoleSpec) -> Result<String> {
    Ok(match role.roletype {
        RoleSpecType::ROLESPEC_CSTRING => role.rolename().unwrap_or_default().into(),
        RoleSpecType::ROLESPEC_PUBLIC => "public".into(),
        RoleSpecType::ROLESPEC_CURRENT_USER | RoleSpecType::ROLESPEC_CURRENT_ROLE => "current_user".into(),
        _ => "session_user".into(),
    })
}

pub(super) fn grant(statement: &nodes::GrantStmt) -> Result<Utility> {
    let mut rights = Vec::new();
    for right in statement.privileges() {
        if !right.cols().is_empty() {
            return Err(SqlError::unsupported("rights on columns are not supported"));
        }
        rights.extend(right.priv_name().map(str::to_lowercase));
    }
    let grantees = statement.grantees().iter().map(role_name).collect::<Result<_>>()?;
    Ok(Utility::Role(RoleStatement::Grant(GrantRights {
        grant: statement.is_grant,
        rights,
        on: grant_object(statement)?,
        grantees,
        with_grant_option: statement.grant_option,
    })))
}

fn grant_object(statement: &nodes::GrantStmt) -> Result<GrantObject> {
    // Only of tables and sequences the objects are relations; the list must not be read for others.
    let relations = || statement.objects().iter().filter_map(|relation| relation.relname()).map(Into::into).collect();
    let all = statement.targtype == GrantTargetType::ACL_TARGET_ALL_IN_SCHEMA;
    match statement.objtype {
        ObjectType::OBJECT_TABLE if all => Ok(GrantObject::AllTables),
        ObjectType::OBJECT_SEQUENCE if all => Ok(GrantObject::AllSequences),
        ObjectType::OBJECT_TABLE => Ok(GrantObject::Tables(relations())),
        ObjectType::OBJECT_SEQUENCE => Ok(GrantObject::Sequences(relations())),
        // There is one of each.
        ObjectType::OBJECT_SCHEMA => Ok(GrantObject::Schema(vec!["public".into()])),
        ObjectType::OBJECT_DATABASE => Ok(GrantObject::Database(vec![])),
        _ => Err(SqlError::unsupported("rights on this kind of object are not supported")),
    }
}

pub(super) fn membership(statement: &nodes::GrantRoleStmt) -> Result<Utility> {
    if !statement.opt().is_empty() {
        return Err(SqlError::unsupported("options of a membership are not supported"));
    }
    Ok(Utility::Role(RoleStatement::Membership {
        grant: statement.is_grant,
        roles: roles(statement.granted_roles().iter())?,
        members: roles(statement.grantee_roles().iter())?,
    }))
}
