//! Names of relations.
//!
//! What PostgreSQL calls a schema is a namespace here, since [`super::Schema`] is all of them. Below SQL a relation is
//! known by one text, in logs, fences, copies and shards alike: `items` in the namespace `public`, `billing.items` in
//! another one. No namespace has a dot in its name, so the first dot divides; a relation of `public` with a dot of its
//! own is `public.a.b`. Names of keys and constraints are plain: they are in the namespace of their table.

/// The namespace that is always there.
pub const PUBLIC: &str = "public";

/// The one text for a relation in a namespace.
pub fn relation_name(namespace: &str, name: &str) -> String {
    match namespace == PUBLIC && !name.contains('.') {
        true => name.into(),
        false => format!("{namespace}.{name}"),
    }
}

/// The namespace and the name in it.
pub fn relation_parts(relation: &str) -> (&str, &str) {
    relation.split_once('.').unwrap_or((PUBLIC, relation))
}

/// The name without its namespace.
pub fn plain_name(relation: &str) -> &str {
    relation_parts(relation).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        for (namespace, name, text) in [
            ("public", "items", "items"),
            ("billing", "items", "billing.items"),
            ("public", "a.b", "public.a.b"),
            ("billing", "a.b", "billing.a.b"),
        ] {
            assert_eq!(relation_name(namespace, name), text);
            assert_eq!(relation_parts(text), (namespace, name));
        }
    }
}
