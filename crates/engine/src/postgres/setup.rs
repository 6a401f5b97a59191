//! Our own objects in the database: schema `_isles`, made when a shard is opened.
//!
//!   * `meta`         format, how far the log has been trimmed, the secret that marks our own writes, and whose the
//!     shard is: null if tenants share it, empty if nobody has it yet
//!   * `schema`       every schema version that a log record may need, and where in the log it began
//!   * `fence`        which units are served; runs of buckets, pinned tenants, shared tables; and whole groups
//!   * `fence_token`  a number that the fences have as long as none of them changes, and never again
//!   * `log`          the change log; `consumer`, its readers
//!   * `stream`       where streams of applied rows stand, and who drives them; `row_version`, how new each applied row is
//!
//! Functions pin the settings they depend on, so that nothing a client sets for its session reaches them; `relation`,
//! which is put in its place as an expression, names its operators in full. A client's temporary tables come last in
//! their path, or a type of the same name would be taken for the server's.
//!
//! Clients' statements ([`tenancy`]) read the fences and do nothing else here. `verify` tells them whether the shard is
//! their tenant's, and not whose it is. `capture` writes the log for them, in the owner's name. Whoever could make a trigger of it would run any text as the owner, so nobody else may.

use super::fault;
use super::fence::LOCK_CLASS;
use super::pool::Conn;
use super::schema;
use super::tenancy;
use crate::error::{Result, ShardError};

/// Raised when the layout of `_isles` changes; a newer one is refused.
const FORMAT: i32 = 7;
/// The oldest server with `xid8` and the snapshot functions that the log's readers need.
const OLDEST_SERVER: i32 = 130_000;
/// Two processes that open one database at once take turns; slots of fences are not negative.
const SETUP_SLOT: i32 = -1;

/// Makes whatever is missing. May be run by any number of processes, any number of times.
pub(super) async fn prepare(conn: &Conn) -> Result<()> {
    let text =
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), pg_is_in_recovery()";
    let row = conn.query_one(text, &[]).await.map_err(fault::before_commit)?;
    if row.get::<_, i32>(0) < OLDEST_SERVER {
        return Err(ShardError::invalid("the server is older than PostgreSQL 13"));
    }
    if row.get::<_, &str>(1) != "UTF8" {
        return Err(ShardError::invalid(format!(
            "the database's encoding is {}, UTF8 is needed",
            row.get::<_, &str>(1)
        )));
    }
    if row.get::<_, bool>(2) {
        return Err(ShardError::Unavailable("the server is a standby".into()));
    }
    tenancy::prepare_roles(conn).await?;
    conn.batch_execute(&format!("BEGIN READ WRITE; {}", lock_text())).await.map_err(fault::before_commit)?;
    // What is there is left alone: making it again would wait for those who use it.
    if stored_format(conn).await? < FORMAT {
        conn.batch_execute(&objects()).await.map_err(fault::before_commit)?;
        tenancy::fence_all(conn, &schema::load(conn).await?).await?;
    }
    conn.batch_execute("COMMIT").await.map_err(fault::during_commit)
}

/// Two who set up or test one database take turns, until their transactions end.
pub(super) fn lock_text() -> String {
    format!("SELECT pg_advisory_xact_lock({LOCK_CLASS}, {SETUP_SLOT})")
}

/// The format of what is there; zero if nothing is.
async fn stored_format(conn: &Conn) -> Result<i32> {
    let there = "SELECT to_regclass('_isles.meta') IS NOT NULL";
    let there = conn.query_one(there, &[]).await.map_err(fault::before_commit)?;
    if !there.get::<_, bool>(0) {
        return Ok(0);
    }
    let row = conn.query_one("SELECT format FROM _isles.meta", &[]).await.map_err(fault::before_commit)?;
    match row.get::<_, i32>(0) {
        newer if newer > FORMAT => Err(ShardError::invalid(format!(
            "the shard has format {newer}, and this version of Isles knows up to {FORMAT}"
        ))),
        known => Ok(known),
    }
}

fn objects() -> String {
    OBJECTS
        .replace("{LOOK}", &looks())
        .replace("{FORMAT}", &FORMAT.to_string())
        .replace("{CLASS}", &LOCK_CLASS.to_string())
        .replace("{ROLE}", tenancy::ROLE)
        .replace("{MOVED}", fault::MOVED)
        .replace("{STRANGERS}", fault::STRANGERS)
        .replace("{OTHER}", fault::OTHER_TENANT)
}

/// The fences in SQL: `look` with a snapshot of its own, for whoever has taken locks before; `look_within` with that of
/// the statement that it is a part of, so that what is read is of the moment that was looked at.
fn looks() -> String {
    let look = |(name, volatility)| LOOK.replace("{NAME}", name).replace("{VOLATILITY}", volatility);
    [("look", "VOLATILE"), ("look_within", "STABLE")].map(look).join("\n\n")
}

const LOOK: &str = r#"CREATE OR REPLACE FUNCTION _isles.{NAME}(claimed bigint, writes boolean, tenants text[], groups text[], buckets bigint[])
RETURNS text LANGUAGE plpgsql {VOLATILITY} SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    needed bigint;
    served text;
    seen text := '';
    own record;
BEGIN
    FOR i IN 1 .. coalesce(array_length(groups, 1), 0) LOOP
        needed := NULL;
        served := NULL;
        IF groups[i] IS NOT NULL AND buckets[i] IS NULL THEN
            IF EXISTS (SELECT FROM _isles.fence WHERE kind = 'whole' AND name = groups[i] AND mode = 'closed') THEN
                RAISE EXCEPTION USING ERRCODE = '{STRANGERS}', MESSAGE = 'strangers', DETAIL = groups[i];
            END IF;
            CONTINUE;
        END IF;
        IF buckets[i] = -1 THEN
            FOR own IN SELECT name, version, mode FROM _isles.fence WHERE kind = 'tenant' ORDER BY name LOOP
                IF own.version > claimed OR ((own.mode = 'closed' OR (writes AND own.mode <> 'open'))
                                             AND _isles.owns_tenant(tenants[i], own.name)) THEN
                    RAISE EXCEPTION USING ERRCODE = '{MOVED}', MESSAGE = 'moved',
                        DETAIL = format('%s %s', i - 1, own.version);
                END IF;
                seen := seen || format('%s %s %s;', own.name, own.version, own.mode);
            END LOOP;
            CONTINUE;
        END IF;
        IF groups[i] IS NULL THEN
            SELECT version, mode INTO needed, served FROM _isles.fence WHERE kind = 'shared';
        ELSE
            IF tenants[i] IS NOT NULL THEN
                SELECT version, mode INTO needed, served FROM _isles.fence WHERE kind = 'tenant' AND name = tenants[i];
            END IF;
            IF served IS NULL THEN
                SELECT version, mode INTO needed, served FROM _isles.fence
                WHERE kind = 'bucket' AND name = groups[i] AND first <= buckets[i] AND last >= buckets[i];
            END IF;
        END IF;
        IF served IS NULL OR served = 'closed' OR claimed < needed OR (writes AND served <> 'open') THEN
            RAISE EXCEPTION USING ERRCODE = '{MOVED}', MESSAGE = 'moved',
                DETAIL = format('%s %s', i - 1, coalesce(needed, 0));
        END IF;
        seen := seen || format('%s %s;', needed, served);
    END LOOP;
    RETURN seen;
END $$;
"#;

/// Everything in `_isles`, each statement harmless when its object is there.
const OBJECTS: &str = r#"
SET LOCAL client_min_messages = error;
CREATE SCHEMA IF NOT EXISTS _isles;
CREATE TABLE IF NOT EXISTS _isles.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL,
    trimmed bigint NOT NULL DEFAULT 0,
    secret text NOT NULL DEFAULT gen_random_uuid()::text
);
ALTER TABLE _isles.meta ADD COLUMN IF NOT EXISTS bound text COLLATE "C";
INSERT INTO _isles.meta (format) VALUES ({FORMAT}) ON CONFLICT (one) DO UPDATE SET format = {FORMAT};
CREATE TABLE IF NOT EXISTS _isles.schema (
    version bigint PRIMARY KEY,
    after_seq bigint NOT NULL,
    body text NOT NULL
);
CREATE TABLE IF NOT EXISTS _isles.fence (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    version bigint NOT NULL,
    mode text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, name, first)
);
CREATE TABLE IF NOT EXISTS _isles.fence_token (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    token bigint NOT NULL DEFAULT hashtextextended(gen_random_uuid()::text, 0)
);
INSERT INTO _isles.fence_token DEFAULT VALUES ON CONFLICT (one) DO NOTHING;
CREATE OR REPLACE FUNCTION _isles.renew_token() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE _isles.fence_token SET token = DEFAULT;
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS renew_token ON _isles.fence;
CREATE TRIGGER renew_token AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON _isles.fence
    FOR EACH STATEMENT EXECUTE FUNCTION _isles.renew_token();
CREATE SEQUENCE IF NOT EXISTS _isles.log_seq CACHE 1;
CREATE TABLE IF NOT EXISTS _isles.log (
    seq bigint PRIMARY KEY DEFAULT nextval('_isles.log_seq'),
    txn xid8 NOT NULL DEFAULT pg_current_xact_id(),
    tab text COLLATE "C" NOT NULL,
    before bytea,
    after bytea
);
CREATE INDEX IF NOT EXISTS log_txn ON _isles.log (txn);
CREATE TABLE IF NOT EXISTS _isles.consumer (stream text COLLATE "C" PRIMARY KEY, position bigint);
CREATE TABLE IF NOT EXISTS _isles.stream (
    stream text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL DEFAULT 0,
    cursor bytea
);
ALTER TABLE _isles.stream ADD COLUMN IF NOT EXISTS driver bigint;
CREATE TABLE IF NOT EXISTS _isles.row_version (
    tab text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    stream text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    gone boolean NOT NULL,
    PRIMARY KEY (tab, key)
);
CREATE INDEX IF NOT EXISTS row_version_stream ON _isles.row_version (stream);

CREATE OR REPLACE FUNCTION _isles.tenant_bucket(tenant text, buckets bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    hash bigint := 2166136261;
    point bigint;
BEGIN
    FOR i IN 1 .. length(tenant) LOOP
        point := ascii(substr(tenant, i, 1));
        IF point > 65535 THEN
            hash := ((hash # (55296 + ((point - 65536) >> 10))) * 16777619) & 4294967295;
            point := 56320 + ((point - 65536) & 1023);
        END IF;
        hash := ((hash # point) * 16777619) & 4294967295;
    END LOOP;
    RETURN hash % buckets;
END $$;

CREATE OR REPLACE FUNCTION _isles.owns_tenant(residents text, tenant text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    marked text := chr(1) || tenant || chr(1);
BEGIN
    IF tenant <> '' AND strpos(split_part(residents, chr(10), 3), marked) > 0 THEN
        RETURN true;
    END IF;
    IF tenant <> '' AND strpos(split_part(residents, chr(10), 4), marked) > 0 THEN
        RETURN false;
    END IF;
    RETURN get_bit(decode(split_part(residents, chr(10), 2), 'hex'),
                   _isles.tenant_bucket(tenant, split_part(residents, chr(10), 1)::bigint)::integer) = 1;
END $$;

{LOOK}
CREATE OR REPLACE FUNCTION _isles.enter(
    claimed bigint, writes boolean, tenants text[], groups text[], buckets bigint[], slots integer[]
) RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({CLASS}, slot) FROM unnest(slots) AS slot;
    RETURN _isles.look(claimed, writes, tenants, groups, buckets);
END $$;

CREATE OR REPLACE FUNCTION _isles.verify() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM _isles.meta WHERE bound <> '' AND bound = substr(current_setting('isles.tenant', true), 2)) THEN
        RAISE EXCEPTION USING ERRCODE = '{OTHER}', MESSAGE = 'the shard belongs to another tenant';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION _isles.foreign_rows() RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN current_setting('isles.applying') = (SELECT secret FROM _isles.meta);
END $$;

CREATE OR REPLACE FUNCTION _isles.relation(namespace name, tab name) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN namespace::text OPERATOR(pg_catalog.=) 'public'
                     AND pg_catalog.strpos(tab::text, '.') OPERATOR(pg_catalog.=) 0
                THEN tab::text
                ELSE namespace::text OPERATOR(pg_catalog.||) '.' OPERATOR(pg_catalog.||) tab::text END
$$;

DROP FUNCTION IF EXISTS _isles.row_now(text, text, jsonb);

CREATE OR REPLACE FUNCTION _isles.row_now(tab regclass, condition text, wanted jsonb) RETURNS bytea LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 SET timezone = 'UTC' SET datestyle = 'ISO, YMD' AS $$
DECLARE
    image bytea;
BEGIN
    EXECUTE format('SELECT pg_catalog.record_send(t) FROM %s AS t WHERE %s', tab, condition) INTO image USING wanted;
    RETURN image;
END $$;

CREATE OR REPLACE FUNCTION _isles.capture() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET client_encoding = 'UTF8' AS $$
DECLARE
    old_row bytea;
    new_row bytea;
    relation text;
BEGIN
    IF coalesce(current_setting('isles.applying', true), '') <> '' AND _isles.foreign_rows() THEN
        RETURN NULL;
    END IF;
    relation := _isles.relation(TG_TABLE_SCHEMA, TG_TABLE_NAME);
    IF TG_OP <> 'INSERT' THEN
        old_row := record_send(OLD);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        new_row := record_send(NEW);
    END IF;
    IF pg_trigger_depth() > 1 OR current_setting('isles.nested', true) = 'on' THEN
        PERFORM set_config('isles.nested', 'on', true);
        IF TG_OP = 'UPDATE' AND TG_ARGV[0] = 'update' THEN
            new_row := _isles.row_now(TG_RELID, TG_ARGV[1], to_jsonb(NEW));
            IF new_row IS NULL THEN
                RETURN NULL;
            END IF;
        ELSE
            IF TG_OP <> 'INSERT' AND _isles.row_now(TG_RELID, TG_ARGV[1], to_jsonb(OLD)) IS NOT NULL THEN
                old_row := NULL;
            END IF;
            IF TG_OP <> 'DELETE' THEN
                new_row := _isles.row_now(TG_RELID, TG_ARGV[1], to_jsonb(NEW));
            END IF;
        END IF;
    END IF;
    IF TG_OP = 'UPDATE' AND TG_ARGV[0] = 'update' THEN
        INSERT INTO _isles.log (tab, before, after) VALUES (relation, old_row, new_row);
        RETURN NULL;
    END IF;
    IF old_row IS NOT NULL THEN
        INSERT INTO _isles.log (tab, before) VALUES (relation, old_row);
    END IF;
    IF new_row IS NOT NULL THEN
        INSERT INTO _isles.log (tab, after) VALUES (relation, new_row);
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION _isles.own_changes()
RETURNS TABLE (seq bigint, txn xid8, tab text, before bytea, after bytea, version bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.seq, l.txn, l.tab, l.before, l.after, (SELECT max(s.version) FROM _isles.schema AS s)
    FROM _isles.log AS l WHERE l.txn = pg_current_xact_id_if_assigned() ORDER BY l.seq
$$;

CREATE OR REPLACE FUNCTION _isles.refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = 'TRUNCATE is not supported on a sharded table', HINT = 'use DELETE';
END $$;

CREATE OR REPLACE FUNCTION _isles.forget_prepared() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made text;
BEGIN
    FOR made IN SELECT name FROM pg_prepared_statements WHERE from_sql LOOP
        EXECUTE format('DEALLOCATE %I', made);
    END LOOP;
END $$;

REVOKE ALL ON SCHEMA _isles FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA _isles FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA _isles FROM PUBLIC;
GRANT USAGE ON SCHEMA _isles TO {ROLE};
GRANT SELECT ON _isles.fence, _isles.fence_token TO {ROLE};
GRANT EXECUTE ON FUNCTION _isles.look(bigint, boolean, text[], text[], bigint[]) TO {ROLE};
GRANT EXECUTE ON FUNCTION _isles.look_within(bigint, boolean, text[], text[], bigint[]) TO {ROLE};
GRANT EXECUTE ON FUNCTION _isles.enter(bigint, boolean, text[], text[], bigint[], integer[]) TO {ROLE};
GRANT EXECUTE ON FUNCTION _isles.tenant_bucket(text, bigint), _isles.owns_tenant(text, text) TO {ROLE};
GRANT EXECUTE ON FUNCTION _isles.relation(name, name), _isles.forget_prepared(), _isles.verify(), _isles.own_changes() TO {ROLE};
DO $$ BEGIN
    IF NOT pg_catalog.has_schema_privilege('{ROLE}', 'public', 'USAGE') THEN
        GRANT USAGE ON SCHEMA public TO {ROLE};
    END IF;
END $$;
"#;
