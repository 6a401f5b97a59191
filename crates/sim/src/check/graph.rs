//! A directed graph with labelled edges: strongly connected components and short paths.
//!
//! Nothing recurses, so that a history of a million transactions in a row does not overflow the stack.

use std::collections::{BTreeMap, VecDeque};

pub(super) type Vertex = u32;

/// An edge with its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge<L> {
    pub(super) from: Vertex,
    pub(super) to: Vertex,
    pub(super) label: L,
}

/// Edges grouped by the vertex they leave.
pub(super) struct Graph<L> {
    /// The edges that leave vertex `v` are `edges[starts[v]..starts[v + 1]]`.
    starts: Vec<u32>,
    edges: Vec<Edge<L>>,
}

impl<L: Copy> Graph<L> {
    pub(super) fn new(vertices: usize, mut edges: Vec<Edge<L>>) -> Graph<L> {
        edges.sort_by_key(|edge| edge.from);
        let mut starts = vec![0; vertices + 1];
        edges.iter().for_each(|edge| starts[edge.from as usize + 1] += 1);
        for vertex in 0..vertices {
            starts[vertex + 1] += starts[vertex];
        }
        Graph { starts, edges }
    }

    pub(super) fn edges(&self) -> &[Edge<L>] {
        &self.edges
    }

    fn leaving(&self, vertex: Vertex) -> &[Edge<L>] {
        &self.edges[self.starts[vertex as usize] as usize..self.starts[vertex as usize + 1] as usize]
    }

    /// The strongly connected components over the edges that `keeps` accepts.
    pub(super) fn components(&self, keeps: impl Fn(L) -> bool) -> Components {
        let mut tarjan = Tarjan::new(self.starts.len() - 1);
        for root in 0..self.starts.len() as Vertex - 1 {
            tarjan.visit(self, root, &keeps);
        }
        tarjan.found
    }

    /// A path with the fewest edges that count, inside one component and over the edges that `keeps` accepts. Edges
    /// that do not count are free. `visits` is what the search may spend; it gives up at 0.
    pub(super) fn shortest_path(
        &self,
        (from, to): (Vertex, Vertex),
        components: &Components,
        keeps: impl Fn(L) -> bool,
        counts: impl Fn(L) -> bool,
        visits: &mut usize,
    ) -> Option<Vec<Edge<L>>> {
        let mut reached: BTreeMap<Vertex, (usize, Option<Edge<L>>)> = BTreeMap::from([(from, (0, None))]);
        let mut queue = VecDeque::from([(from, 0)]);
        while let Some((vertex, length)) = queue.pop_front() {
            *visits = visits.checked_sub(1)?;
            if vertex == to {
                return Some(walk_back(&reached, to));
            }
            if reached[&vertex].0 < length {
                continue;
            }
            for &edge in self.leaving(vertex).iter().filter(|edge| keeps(edge.label)) {
                let longer = length + usize::from(counts(edge.label));
                let is_known = reached.get(&edge.to).is_some_and(|&(known, _)| known <= longer);
                if is_known || !components.share(edge.from, edge.to) {
                    continue;
                }
                reached.insert(edge.to, (longer, Some(edge)));
                if longer == length { queue.push_front((edge.to, longer)) } else { queue.push_back((edge.to, longer)) }
            }
        }
        None
    }
}

fn walk_back<L: Copy>(reached: &BTreeMap<Vertex, (usize, Option<Edge<L>>)>, to: Vertex) -> Vec<Edge<L>> {
    let mut path = Vec::new();
    let mut at = to;
    while let Some((_, Some(edge))) = reached.get(&at) {
        path.push(*edge);
        at = edge.from;
    }
    path.reverse();
    path
}

/// Which component each vertex is in.
pub(super) struct Components {
    of: Vec<u32>,
    sizes: Vec<u32>,
}

impl Components {
    /// Whether two vertices are in one component.
    pub(super) fn share(&self, one: Vertex, other: Vertex) -> bool {
        self.of[one as usize] == self.of[other as usize]
    }

    /// How many vertices the component of `vertex` has.
    pub(super) fn size(&self, vertex: Vertex) -> u32 {
        self.sizes[self.of[vertex as usize] as usize]
    }

    /// Whether no component has two vertices. A graph without loops is then free of cycles.
    pub(super) fn are_single(&self) -> bool {
        self.sizes.iter().all(|&size| size == 1)
    }
}

const UNSEEN: u32 = u32::MAX;

/// Tarjan's algorithm with its own stack of calls.
struct Tarjan {
    found: Components,
    /// When a vertex was first seen.
    index: Vec<u32>,
    /// The earliest vertex on the stack that can be reached from a vertex.
    low: Vec<u32>,
    next_index: u32,
    /// Vertices whose component is not complete.
    open: Vec<Vertex>,
    /// The path of the depth-first search: a vertex, and how many of its edges are done.
    calls: Vec<(Vertex, usize)>,
}

impl Tarjan {
    fn new(vertices: usize) -> Tarjan {
        Tarjan {
            found: Components { of: vec![UNSEEN; vertices], sizes: Vec::new() },
            index: vec![UNSEEN; vertices],
            low: vec![UNSEEN; vertices],
            next_index: 0,
            open: Vec::new(),
            calls: Vec::new(),
        }
    }

    fn visit<L: Copy>(&mut self, graph: &Graph<L>, root: Vertex, keeps: &impl Fn(L) -> bool) {
        if self.index[root as usize] == UNSEEN {
            self.enter(root);
        }
        while let Some((vertex, done)) = self.calls.last_mut() {
            let vertex = *vertex;
            let Some(edge) = graph.leaving(vertex).get(*done) else {
                self.leave(vertex);
                continue;
            };
            *done += 1;
            if keeps(edge.label) {
                self.follow(vertex, edge.to);
            }
        }
    }

    fn enter(&mut self, vertex: Vertex) {
        self.index[vertex as usize] = self.next_index;
        self.low[vertex as usize] = self.next_index;
        self.next_index += 1;
        self.open.push(vertex);
        self.calls.push((vertex, 0));
    }

    fn follow(&mut self, from: Vertex, to: Vertex) {
        if self.index[to as usize] == UNSEEN {
            self.enter(to);
        } else if self.found.of[to as usize] == UNSEEN {
            self.low[from as usize] = self.low[from as usize].min(self.index[to as usize]);
        }
    }

    fn leave(&mut self, vertex: Vertex) {
        self.calls.pop();
        let low = self.low[vertex as usize];
        if let Some(&(caller, _)) = self.calls.last() {
            self.low[caller as usize] = self.low[caller as usize].min(low);
        }
        if low == self.index[vertex as usize] {
            self.close_component(vertex);
        }
    }

    fn close_component(&mut self, root: Vertex) {
        let component = self.found.sizes.len() as u32;
        self.found.sizes.push(0);
        while let Some(member) = self.open.pop() {
            self.found.of[member as usize] = component;
            self.found.sizes[component as usize] += 1;
            if member == root {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn graph(vertices: usize, edges: &[(Vertex, Vertex)]) -> Graph<bool> {
        let edges = edges.iter().map(|&(from, to)| Edge { from, to, label: true }).collect();
        Graph::new(vertices, edges)
    }

    /// Two vertices share a component if and only if each reaches the other; compared with plain reachability.
    #[test]
    fn components_are_those_of_mutual_reachability() {
        let mut rng = Rng::new(1);
        let mut larger = 0;
        for _ in 0..500 {
            let edges: Vec<_> = (0..rng.below(14)).map(|_| (rng.below(8) as Vertex, rng.below(8) as Vertex)).collect();
            let components = graph(8, &edges).components(|_| true);
            let mut reaches = [[false; 8]; 8];
            edges.iter().for_each(|&(from, to)| reaches[from as usize][to as usize] = true);
            for via in 0..8 {
                for (from, to) in (0..64).map(|pair| (pair / 8, pair % 8)) {
                    reaches[from][to] |= reaches[from][via] && reaches[via][to];
                }
            }
            for (from, to) in (0..64).map(|pair| (pair / 8, pair % 8)) {
                let mutual = from == to || (reaches[from][to] && reaches[to][from]);
                assert_eq!(components.share(from as Vertex, to as Vertex), mutual, "{edges:?}: {from}, {to}");
            }
            larger += usize::from(!components.are_single());
        }
        assert!((100..400).contains(&larger), "{larger}");
    }

    #[test]
    fn edges_that_are_not_kept_do_not_connect() {
        let edges = vec![Edge { from: 0, to: 1, label: true }, Edge { from: 1, to: 0, label: false }];
        let graph = Graph::new(2, edges);
        assert!(!graph.components(|_| true).are_single());
        assert!(graph.components(|label| label).are_single());
    }

    #[test]
    fn the_path_with_the_fewest_counted_edges_is_found() {
        // 0 → 1 → 4 counts twice; 0 → 2 → 3 → 4 has three edges, of which one counts.
        let edge = |from, to, label| Edge { from, to, label };
        let edges = vec![
            edge(0, 1, true),
            edge(1, 4, true),
            edge(0, 2, true),
            edge(2, 3, false),
            edge(3, 4, false),
            edge(4, 0, true),
        ];
        let graph = Graph::new(5, edges);
        let components = graph.components(|_| true);
        let path = graph.shortest_path((0, 4), &components, |_| true, |label| label, &mut 100);
        let path = path.expect("4 is within reach");
        assert_eq!(path.iter().map(|edge| edge.to).collect::<Vec<_>>(), [2, 3, 4]);
        assert!(graph.shortest_path((0, 4), &components, |_| true, |label| label, &mut 2).is_none(), "out of visits");
        assert!(graph.shortest_path((0, 4), &components, |label| !label, |_| true, &mut 100).is_none());
    }

    #[test]
    fn a_million_vertices_in_a_row_do_not_overflow_the_stack() {
        let edges: Vec<_> = (0..999_999).map(|vertex| (vertex, vertex + 1)).collect();
        assert!(graph(1_000_000, &edges).components(|_| true).are_single());
    }
}
