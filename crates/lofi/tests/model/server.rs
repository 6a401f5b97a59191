//! A server as the wire describes it, in memory, with everything that an oracle wants to know.
//!
//! It keeps the rules of `isles_kernel::sync`, and can be told to break one: after a move it may begin its versions anew,
//! and then look at numbers alone (planted bug 13).

use isles_kernel::sync::*;
use isles_lofi::{Reply, Request, Row};
use isles_sim::rng::Rng;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use uuid::Uuid;

pub(crate) type Rows = BTreeMap<RowKey, Row>;

/// How entries are appended after a tenant was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// The target goes on where the source stopped, as it must.
    GoesOn,
    /// Bug 13: versions begin anew, but a cursor of the old log is refused.
    RestartsAndRefuses,
    /// Bug 13, and nobody looks at the id of a cursor.
    RestartsBlindly,
}

/// One tenant.
pub(crate) struct Tenant {
    pub(crate) partition: PartitionId,
    pub(crate) rows: Rows,
    pub(crate) log: Vec<Entry>,
    pub(crate) floor: u64,
    blind: bool,
    records: HashMap<RequestId, (SubmitRequest, SubmitResponse)>,
    /// The state at each cursor that ever was.
    pub(crate) states: HashMap<Cursor, Rows>,
    /// How often each command was executed, by the mark in its input.
    pub(crate) executed: BTreeMap<String, u32>,
    marks: BTreeSet<RequestId>,
}

/// Pages are small so that histories have many of them.
const PAGE: usize = 3;

fn refuse(code: Code) -> Refusal {
    Refusal::new(code, "as the model says")
}

impl Tenant {
    pub(crate) fn new(name: &str) -> Tenant {
        let mut states = HashMap::new();
        states.insert(Cursor::START, Rows::new());
        Tenant {
            partition: format!("partition-of-{name}").parse().unwrap(),
            rows: Rows::new(),
            log: Vec::new(),
            floor: 0,
            blind: false,
            records: HashMap::new(),
            states,
            executed: BTreeMap::new(),
            marks: BTreeSet::new(),
        }
    }

    pub(crate) fn head(&self) -> Cursor {
        self.log.last().map_or(Cursor::START, |entry| entry.cursor().unwrap())
    }

    fn append(&mut self, mutations: Vec<Mutation>, request_id: Option<RequestId>, rng: &mut Rng) -> Option<Cursor> {
        if mutations.is_empty() {
            return None;
        }
        let head = self.head();
        let id = EntryId(Uuid::from_u128((u128::from(rng.bits()) << 64) | u128::from(rng.bits())));
        let entry = Entry { version: head.version().next(), id, prev: head.entry(), at_ms: 0, request_id, mutations };
        for mutation in &entry.mutations {
            match mutation.op {
                Op::Delete => drop(self.rows.remove(&mutation.key)),
                Op::Create => {
                    let row = Row { version: mutation.version, values: mutation.values.clone() };
                    self.rows.insert(mutation.key.clone(), row);
                }
                Op::Update => {
                    let row = self.rows.get_mut(&mutation.key).unwrap();
                    row.version = mutation.version;
                    row.values.merge(&mutation.values);
                }
            }
        }
        self.log.push(entry);
        self.states.insert(self.head(), self.rows.clone());
        Some(self.head())
    }

    /// Somebody else's transaction.
    pub(crate) fn write(&mut self, rng: &mut Rng) {
        let mut mutations = Vec::new();
        for _ in 0..rng.range(1..4) {
            let id = format!("r{}", rng.below(8));
            let key = RowKey::new("s", "t", id).unwrap();
            if mutations.iter().any(|mutation: &Mutation| mutation.key == key) {
                continue;
            }
            let values = json!({"n": rng.below(5), "list": format!("l{}", rng.below(2))});
            let values: Values = serde_json::from_value(values).unwrap();
            mutations.push(match (self.rows.get(&key), rng.chance(1, 4)) {
                (None, _) => Mutation::new(Op::Create, key, RowVersion(0), values).unwrap(),
                (Some(row), true) => Mutation::new(Op::Delete, key, row.version, Values::default()).unwrap(),
                (Some(row), false) => Mutation::new(Op::Update, key, RowVersion(row.version.0 + 1), values).unwrap(),
            });
        }
        self.append(mutations, None, rng);
    }

    pub(crate) fn raise_floor(&mut self, rng: &mut Rng) {
        let head = self.head().version().get();
        if head > self.floor {
            self.floor = rng.range(self.floor..head + 1);
        }
        // Records may go with the entries that were the newest when they were made.
        let floor = self.floor;
        self.records.retain(|_, (_, response)| response.page.head.version().get() >= floor);
    }

    pub(crate) fn move_to_another_shard(&mut self, how: Moved) {
        if how != Moved::GoesOn {
            self.log.clear();
            self.floor = 0;
            self.blind = how == Moved::RestartsBlindly;
            // The new log begins with the rows there are.
            self.states.insert(Cursor::START, self.rows.clone());
        }
    }

    pub(crate) fn answer(&mut self, request: &Request, rng: &mut Rng) -> Result<Reply, Refusal> {
        match request {
            Request::Outbox(query) => {
                self.check_partition(query.partition.as_ref())?;
                self.page(query.after.unwrap_or(Cursor::START)).map(Reply::Outbox)
            }
            Request::Snapshot(query) => {
                self.check_partition(query.partition.as_ref())?;
                Ok(Reply::Snapshot(self.snapshot(query.after.as_ref())))
            }
            Request::Submit(request) => {
                let json = serde_json::to_vec(request).unwrap();
                let request = SubmitRequest::read(&json).unwrap();
                self.submit(request, rng).map(|response| Reply::Submit(Box::new(response)))
            }
        }
    }

    fn check_partition(&self, partition: Option<&PartitionId>) -> Result<(), Refusal> {
        match partition {
            Some(partition) if *partition != self.partition => Err(refuse(Code::WrongPartition)),
            _ => Ok(()),
        }
    }

    /// Whether the cursor is in this log.
    fn knows(&self, cursor: Cursor) -> bool {
        let version = usize::try_from(cursor.version().get()).unwrap();
        let id = version.checked_sub(1).map(|at| self.log.get(at).map(|entry| entry.id));
        self.blind || id.is_none_or(|id| id.is_some() && id == cursor.entry())
    }

    fn page(&self, after: Cursor) -> Result<OutboxPage, Refusal> {
        if after.version().get() < self.floor || !self.knows(after) {
            return Err(refuse(Code::ResyncRequired));
        }
        Ok(self.entries(after, PAGE))
    }

    fn entries(&self, after: Cursor, limit: usize) -> OutboxPage {
        let skip = usize::try_from(after.version().get()).unwrap();
        let entries: Vec<Entry> = self.log.iter().skip(skip).take(limit).cloned().collect();
        OutboxPage {
            partition: self.partition.clone(),
            next: entries.last().map_or(after, |entry| entry.cursor().unwrap()),
            entries,
            head: self.head(),
            floor: Version::new(self.floor).unwrap(),
        }
    }

    fn snapshot(&self, after: Option<&SnapshotToken>) -> SnapshotPage {
        let after = after.map(|token| RowKey::new("s", "t", token.as_str()).unwrap());
        let rest = self.rows.iter().filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after));
        let row = |(key, row): (&RowKey, &Row)| SnapshotRow {
            key: key.clone(),
            version: row.version,
            values: row.values.clone(),
        };
        let rows: Vec<SnapshotRow> = rest.clone().take(PAGE).map(row).collect();
        let more = rest.count() > rows.len();
        let next = rows.last().filter(|_| more).map(|row| row.key.external_id.parse().unwrap());
        SnapshotPage { partition: self.partition.clone(), cursor: self.head(), rows, next }
    }

    fn submit(&mut self, request: SubmitRequest, rng: &mut Rng) -> Result<SubmitResponse, Refusal> {
        self.check_partition(Some(&request.partition))?;
        if let Some((body, answer)) = self.records.get(&request.request_id) {
            if *body != request {
                return Err(refuse(Code::RequestReused));
            }
            let page = self.late_page(request.cursor);
            return Ok(SubmitResponse { duplicate: true, page, ..answer.clone() });
        }
        if request.cursor.version().get() < self.floor || !self.knows(request.cursor) {
            return Err(refuse(Code::ResyncRequired));
        }
        if self.blind && request.cursor.version().get() > self.head().version().get() {
            return Err(refuse(Code::ResyncRequired));
        }
        let conflicts: Vec<Conflict> =
            (0..request.commands.len()).filter_map(|at| self.conflict(&request, at)).collect();
        let (status, entry) = match conflicts.is_empty() {
            true => (Status::Applied, self.execute(&request, rng)),
            false => (Status::Conflict, None),
        };
        let page = self.entries(request.cursor, PAGE);
        let response =
            SubmitResponse { request_id: request.request_id, status, duplicate: false, entry, conflicts, page };
        self.records.insert(request.request_id, (request, response.clone()));
        Ok(response)
    }

    fn late_page(&self, after: Cursor) -> OutboxPage {
        match after.version().get() < self.floor || !self.knows(after) {
            true => OutboxPage { entries: vec![], next: after, ..self.entries(after, 0) },
            false => self.entries(after, PAGE),
        }
    }

    /// What stands against a command: entries after the cursor that touch what it reads or writes.
    fn conflict(&self, request: &SubmitRequest, at: usize) -> Option<Conflict> {
        let command = &request.commands[at];
        let conflict = |code, key: &RowKey, version| {
            Some(Conflict { command: at, code, key: Some(key.clone()), version: Some(version), message: String::new() })
        };
        let skip = usize::try_from(request.cursor.version().get()).unwrap();
        let written = RowKey::new("s", "t", command.input["id"].as_str().unwrap()).unwrap();
        let mut rows = self.states.get(&request.cursor).cloned().unwrap_or_default();
        for entry in self.log.iter().skip(skip) {
            for mutation in &entry.mutations {
                let before = rows.get(&mutation.key).map(|row| row.values.clone());
                let after = match (mutation.op, before.clone()) {
                    (Op::Delete, _) => None,
                    (Op::Update, Some(mut values)) => {
                        values.merge(&mutation.values);
                        Some(values)
                    }
                    (_, _) => Some(mutation.values.clone()),
                };
                if let Some(code) = command.against(&mutation.key, before.as_ref(), after.as_ref()) {
                    return conflict(code, &mutation.key, entry.version);
                }
                if mutation.key == written && command.name == "add" {
                    return conflict(ConflictCode::WriteConflict, &written, entry.version);
                }
                match after {
                    Some(values) => drop(rows.insert(mutation.key.clone(), Row { version: mutation.version, values })),
                    None => drop(rows.remove(&mutation.key)),
                }
            }
        }
        (command.name == "refuse").then(|| Conflict {
            command: at,
            code: ConflictCode::Rejected,
            key: None,
            version: None,
            message: "no".into(),
        })
    }

    fn execute(&mut self, request: &SubmitRequest, rng: &mut Rng) -> Option<Cursor> {
        assert!(self.marks.insert(request.request_id), "I-3: a request is executed once");
        let mut rows = self.rows.clone();
        let mut mutations = Vec::new();
        for command in &request.commands {
            let mark = command.input["mark"].as_str().unwrap();
            *self.executed.entry(mark.into()).or_default() += 1;
            let key = RowKey::new("s", "t", command.input["id"].as_str().unwrap()).unwrap();
            let old = rows.get(&key).cloned();
            let mutation = match (command.name.as_str(), old) {
                ("add", old) => {
                    let n = old.as_ref().and_then(|row| row.values.get("n")?.as_u64()).unwrap_or(0);
                    let values = serde_json::from_value(json!({"n": n + 1, "list": "l0"})).unwrap();
                    let (op, version) = old.map_or((Op::Create, 0), |row| (Op::Update, row.version.0 + 1));
                    Mutation::new(op, key, RowVersion(version), values).unwrap()
                }
                ("del", Some(old)) => Mutation::new(Op::Delete, key, old.version, Values::default()).unwrap(),
                _ => continue,
            };
            match mutation.op {
                Op::Delete => drop(rows.remove(&mutation.key)),
                _ => {
                    let row = Row { version: mutation.version, values: mutation.values.clone() };
                    rows.insert(mutation.key.clone(), row);
                }
            }
            mutations.push(mutation);
        }
        self.append(mutations, Some(request.request_id), rng)
    }
}
