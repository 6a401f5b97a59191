//! CREATE ROLE, ALTER ROLE and DROP ROLE.
//!
//! Roles are in the catalog, and not in a shard: a change is there at once, for whoever logs in next, whatever becomes
//! of a transaction; within a block it is refused. Sessions keep what their role had when they began.

use super::{Result, Session};
use crate::roles::{self, PASSWORD_BYTES_MAX, Role, RoleError, Verifier};
use isles_kernel::error::SqlError;
use isles_sql::bind::utility::{PasswordOption, RoleOptions, RoleSetting, RoleStatement};

impl Session {
    pub(super) async fn role(&mut self, statement: &RoleStatement) -> Result<()> {
        if self.in_block() {
            return Err(SqlError::new("25001", "roles cannot be changed inside a transaction block"));
        }
        match statement {
            RoleStatement::Create { name, options } => self.create_role(name, options).await?,
            RoleStatement::Alter { name, options } => {
                let (name, verifier) = (self.own_name(name), self.verifier(options).await?);
                change(self, &name, |role| {
                    take(role, options)?;
                    if let Some(verifier) = &verifier {
                        role.verifier.clone_from(verifier);
                    }
                    Ok(())
                })
                .await?;
            }
            RoleStatement::Configure { name, setting } => {
                self.check_role_setting(setting)?;
                change(self, &self.own_name(name), |role| configure(role, setting)).await?;
            }
            RoleStatement::Drop { names, if_exists } => self.drop_roles(names, *if_exists).await?,
            RoleStatement::Grant(_) | RoleStatement::Membership { .. } => {
                let error = SqlError::unsupported("rights of single roles on single objects are not supported");
                let hint = "a role is SUPERUSER and administers, or it uses all tables, or it is locked to its tenant \
                            (ALTER ROLE … SET isles.tenant, then SET isles.tenant_locked = on)";
                return Err(error.with_hint(hint));
            }
        }
        self.database.learn_roles().await
    }

    fn own_name(&self, name: &str) -> String {
        match name {
            "current_user" | "session_user" => self.user.to_string(),
            name => name.into(),
        }
    }

    async fn create_role(&mut self, name: &str, options: &RoleOptions) -> Result<()> {
        let verifier = self.verifier(options).await?.flatten();
        let mut role = Role { verifier, login: options.user, ..Role::default() };
        take(&mut role, options)?;
        match roles::create(self.database.catalog().as_ref(), name, &role).await.map_err(told)? {
            true => Ok(()),
            false => Err(SqlError::new("42710", format!("role \"{name}\" already exists"))),
        }
    }

    async fn drop_roles(&mut self, names: &[String], if_exists: bool) -> Result<()> {
        for name in names {
            let name = self.own_name(name);
            if name == *self.user {
                return Err(SqlError::new("55006", "current user cannot be dropped"));
            }
            if !roles::remove(self.database.catalog().as_ref(), &name).await.map_err(told)? {
                if !if_exists {
                    return Err(no_role(&name));
                }
                let notice = SqlError::new("00000", format!("role \"{name}\" does not exist, skipping"));
                self.notices.push(("NOTICE", notice));
            }
        }
        Ok(())
    }

    /// What is to be kept of the password that was said; None if none was, and none in it for `PASSWORD NULL`.
    async fn verifier(&self, options: &RoleOptions) -> Result<Option<Option<String>>> {
        let password = match &options.password {
            None => return Ok(None),
            Some(PasswordOption::Clear) => return Ok(Some(None)),
            Some(PasswordOption::Set(password)) => password.clone(),
        };
        if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
            return Err(SqlError::new("22023", format!("a password has 1 to {PASSWORD_BYTES_MAX} bytes")));
        }
        // As PostgreSQL: what is a verifier already is taken as one.
        if password.starts_with("SCRAM-SHA-256$") {
            return password.parse::<Verifier>().map(|verifier| Some(Some(verifier.to_string()))).map_err(told);
        }
        let verifier = crate::execute::run::on_pool(&self.database, move || Verifier::of(&password)).await?;
        verifier.map(|verifier| Some(Some(verifier.to_string()))).map_err(told)
    }

    /// A role's settings are checked as the session's own are, so that nobody is kept from logging in by one.
    fn check_role_setting(&self, setting: &RoleSetting) -> Result<()> {
        match setting {
            RoleSetting::Set(name, value) if name == roles::TENANT_LOCKED => match value.as_str() {
                "on" | "off" | "true" | "false" => Ok(()),
                _ => Err(SqlError::new("22023", format!("parameter \"{name}\" requires a Boolean value"))),
            },
            RoleSetting::Set(name, value) => {
                self.check_setting(name, value)?;
                self.settings.clone().set(name, value, false)
            }
            RoleSetting::Reset(_) | RoleSetting::ResetAll => Ok(()),
        }
    }
}

fn told(error: RoleError) -> SqlError {
    match error {
        RoleError::Catalog(error) => SqlError::new("58000", format!("the catalog cannot be used: {error}")),
        RoleError::Invalid(message) => SqlError::new("22023", message),
    }
}

fn no_role(name: &str) -> SqlError {
    SqlError::new("42704", format!("role \"{name}\" does not exist"))
}

async fn change(session: &Session, name: &str, edit: impl Fn(&mut Role) -> Result<()>) -> Result<()> {
    let catalog = session.database.catalog();
    loop {
        let Some((mut role, at)) = roles::read(catalog.as_ref(), name).await.map_err(told)? else {
            return Err(no_role(name));
        };
        edit(&mut role)?;
        if roles::replace(catalog.as_ref(), name, &role, at).await.map_err(told)? {
            return Ok(());
        }
    }
}

/// What was said of a role. A right that there is none of is refused, and not forgotten.
fn take(role: &mut Role, options: &RoleOptions) -> Result<()> {
    let refused = [
        (options.create_role == Some(true), "CREATEROLE"),
        (options.create_db == Some(true), "CREATEDB"),
        (options.connection_limit.is_some_and(|limit| limit != -1), "CONNECTION LIMIT"),
        (options.valid_until.is_some(), "VALID UNTIL"),
    ];
    if let Some((_, what)) = refused.iter().find(|(said, _)| *said) {
        return Err(SqlError::unsupported(format!("{what} of a role is not supported")));
    }
    role.login = options.login.unwrap_or(role.login);
    role.admin = options.superuser.unwrap_or(role.admin);
    Ok(())
}

fn configure(role: &mut Role, setting: &RoleSetting) -> Result<()> {
    match setting {
        RoleSetting::Set(name, value) => drop(role.settings.insert(name.clone(), value.clone())),
        RoleSetting::Reset(name) => drop(role.settings.remove(name)),
        RoleSetting::ResetAll => role.settings.clear(),
    }
    if role.settings.len() > roles::SETTINGS_MAX {
        return Err(SqlError::new("54000", format!("a role has at most {} settings", roles::SETTINGS_MAX)));
    }
    if role.is_locked() && role.tenant().is_none() {
        let error = SqlError::new("22023", "a role that is locked to its tenant needs one");
        return Err(error.with_hint("ALTER ROLE … SET isles.tenant = '…' first"));
    }
    if role.is_locked() && role.admin {
        return Err(SqlError::new("22023", "a superuser cannot be locked to a tenant"));
    }
    Ok(())
}
