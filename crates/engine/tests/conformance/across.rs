//! From one engine to the other: a shard's rows are the same wherever they are.

use crate::copying::{batch, check_equal, copied, copies, digest};
use crate::fixtures::World;
use crate::given::*;
use crate::random;
use crate::seen;
use crate::snapshots::copy_and_tail;
use crate::values::{fill, matrix, matrix_rows, stored};
use isles_engine::shard::KeyRange;
use isles_kernel::schema::Table;

/// Copies a table page by page.
async fn copy_table(source: &Db, target: &Db, table: &Table) {
    let mut snapshot = source.snapshot().await.unwrap();
    let seq = snapshot.seq();
    let rows = seen::all_rows(&mut *snapshot, &KeyRange::table(&table.name), &mut || 13).await;
    let rows = rows.into_iter().map(|row| copied(table, row, seq)).collect();
    target.apply(copies(&stream("move"), rows)).await.unwrap();
}

/// I-10: there and back again.
pub(crate) async fn every_value_survives_the_way_there_and_back(here: World, there: World) {
    let rows = matrix_rows();
    let (first, second, third) = (
        here.shard_with(vec![matrix()]).await,
        there.shard_with(vec![matrix()]).await,
        here.shard_with(vec![matrix()]).await,
    );
    fill(&first, &rows).await;
    copy_table(&first, &second, &matrix()).await;
    copy_table(&second, &third, &matrix()).await;
    for shard in [&first, &second, &third] {
        let same = shard.rows("matrix").await == stored(&rows);
        assert!(same, "a value changed on {:?}", shard.engine());
        assert_eq!(digest(shard, "matrix").await, digest(&first, "matrix").await);
    }
}

/// I-10, I-31: images of the log carry every value, too.
pub(crate) async fn every_value_survives_in_the_log(here: World, there: World) {
    let (source, target) = (here.shard_with(vec![matrix()]).await, there.shard_with(vec![matrix()]).await);
    let start = source.listen().await;
    fill(&source, &matrix_rows()).await;
    source.must("UPDATE matrix SET c_boolean = NULL WHERE id > 3", vec![]).await;
    source.must("DELETE FROM matrix WHERE id = 2", vec![]).await;
    let changes = source.log_after(start).await;
    target.apply(batch(&stream("move"), changes.iter().map(crate::copying::tailed).collect())).await.unwrap();
    let same = target.rows("matrix").await == source.rows("matrix").await;
    assert!(same, "a value changed on its way");
    assert_eq!(digest(&target, "matrix").await, digest(&source, "matrix").await);
}

/// I-10, I-11
pub(crate) async fn a_copy_and_its_tail_end_equal(here: World, there: World) {
    let (source, target) = (here.shard().await, there.shard().await);
    copy_and_tail(&source, &target, 77).await;
}

/// I-10, I-11, I-34
pub(crate) async fn copies_and_changes_in_any_order_end_equal(here: World, there: World) {
    for seed in 0..random::rounds(4) as u64 {
        crate::interleaved::check(&here, &there, 100 + seed).await;
    }
}

/// I-10
pub(crate) async fn tenants_move_with_their_rows(here: World, there: World) {
    let (source, target) = (here.shard().await, there.shard().await);
    for (name, id) in [(None, 1), (Some("acme"), 1), (Some("acme"), 2), (Some("beta"), 1)] {
        source.put_note(name, id, "x").await;
    }
    copy_table(&source, &target, &notes()).await;
    check_equal(&source, &target, "notes").await;
    crate::tenants::check_names(&target, &[None, Some("acme"), Some("beta")]).await;
}

/// I-10: the gate of a cutover compares schemas of both sides.
pub(crate) async fn equal_changes_give_equal_schemas(here: World, there: World) {
    let (one, two) = (here.shard().await, there.shard().await);
    for db in [&one, &two] {
        db.alter(crate::changelog::audit_trigger()).await;
    }
    assert_eq!(one.schema().await.unwrap(), two.schema().await.unwrap());
    assert_eq!(one.schema().await.unwrap().hash(), two.schema().await.unwrap().hash());
}
