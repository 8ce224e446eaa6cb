//! Attention with an online softmax.

use super::numbers::{exp, larger, ln, narrow, pairs, wide};
use super::random::Mask;
use counterflow::prelude::bf16;

/// The sizes of attention on one rank. Rows are positions by batch: row = position · batch + item. A row has all heads of queries,
/// then those of keys, then those of values.
///
/// ```
/// use counterflow_layers::side::twin::AttentionShape;
///
/// let shape = AttentionShape { positions: 8, batch: 2, heads: 4, groups: 2, depth: 16, causal: true, scale: 0.25 };
/// assert_eq!((shape.rows(), shape.columns(), shape.outputs()), (16, 128, 64));
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionShape {
    /// Positions of a sequence.
    pub positions: usize,
    /// Sequences.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys, and of values: each is for `heads / groups` heads of queries.
    pub groups: usize,
    /// Numbers of a head: 256 at most.
    pub depth: usize,
    /// True if a query sees no later key.
    pub causal: bool,
    /// Factor of the products of queries and keys.
    pub scale: f32,
}

impl AttentionShape {
    /// Rows of queries, keys and values.
    pub fn rows(&self) -> usize {
        self.positions * self.batch
    }

    /// Columns of queries, keys and values side by side.
    pub fn columns(&self) -> usize {
        (self.heads + 2 * self.groups) * self.depth
    }

    /// Columns of the output.
    pub fn outputs(&self) -> usize {
        self.heads * self.depth
    }

    fn row(&self, position: usize, item: usize) -> usize {
        (position * self.batch + item) * self.columns()
    }

    fn query(&self, position: usize, item: usize, head: usize) -> usize {
        self.row(position, item) + head * self.depth
    }

    fn key(&self, position: usize, item: usize, group: usize) -> usize {
        self.row(position, item) + (self.heads + group) * self.depth
    }

    fn value(&self, position: usize, item: usize, group: usize) -> usize {
        self.row(position, item) + (self.heads + self.groups + group) * self.depth
    }

    /// Offset of the numbers of a head of queries of a row in the output.
    fn output(&self, position: usize, item: usize, head: usize) -> usize {
        (position * self.batch + item) * self.heads + head
    }

    fn each_query(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let Self {
            positions,
            batch,
            heads,
            ..
        } = *self;
        (0..positions * batch * heads)
            .map(move |own| [own / heads / batch, own / heads % batch, own % heads])
    }

    fn keys(&self, query: usize) -> usize {
        if self.causal {
            query + 1
        } else {
            self.positions
        }
    }

    /// Factor of a probability.
    fn kept(&self, mask: Option<&Mask>, [item, head, query, key]: [usize; 4]) -> f32 {
        let Some(mask) = mask else { return 1.0 };
        let at = ((item * self.heads + head) * self.positions + query) * self.positions + key;
        match mask.keeps(at as u64) {
            true => mask.scale(),
            false => 0.0,
        }
    }
}

/// The sum of products as a warp adds them: each lane every 32nd one, in order; then lanes in pairs.
fn dot(a: &[bf16], b: &[bf16]) -> f32 {
    let mut lanes = [0f32; 32];
    for (at, (a, b)) in a.iter().zip(b).enumerate() {
        lanes[at % 32] += wide(*a) * wide(*b);
    }
    pairs(&mut lanes)
}

fn add(sum: &mut [f32], by: f32, of: &[bf16]) {
    for (sum, of) in sum.iter_mut().zip(of) {
        *sum += by * wide(*of);
    }
}

fn store(to: &mut [bf16], of: &[f32]) {
    for (to, of) in to.iter_mut().zip(of) {
        *to = narrow(*of);
    }
}

/// The output of every head, and for the backward pass the logarithm of each softmax's sum.
///
/// # Panics
/// If slices do not have the sizes of the shape.
pub fn attention(
    of: &AttentionShape,
    qkv: &[bf16],
    mask: Option<&Mask>,
    out: &mut [bf16],
    logs: &mut [f32],
) {
    let depth = of.depth;
    for [at, item, head] in of.each_query() {
        let group = head / (of.heads / of.groups);
        let q = &qkv[of.query(at, item, head)..][..depth];
        let (mut most, mut all) = (f32::NEG_INFINITY, 0f32);
        let mut sum = vec![0f32; depth];
        for key in 0..of.keys(at) {
            let k = &qkv[of.key(key, item, group)..][..depth];
            let v = &qkv[of.value(key, item, group)..][..depth];
            let score = dot(q, k) * of.scale;
            let next = larger(most, score);
            let (less, p) = (exp(most - next), exp(score - next));
            all = all * less + p;
            sum.iter_mut().for_each(|sum| *sum *= less);
            add(&mut sum, p * of.kept(mask, [item, head, at, key]), v);
            most = next;
        }
        let by = 1.0 / all;
        sum.iter_mut().for_each(|sum| *sum *= by);
        let own = of.output(at, item, head);
        store(&mut out[own * depth..][..depth], &sum);
        logs[own] = most + ln(all);
    }
}

/// The gradients of queries, keys and values, of that of the output.
///
/// # Panics
/// As [`attention`].
pub fn attention_backward(
    of: &AttentionShape,
    qkv: &[bf16],
    mask: Option<&Mask>,
    [out, dout]: [&[bf16]; 2],
    logs: &[f32],
    dqkv: &mut [bf16],
) {
    let depth = of.depth;
    let mut deltas = vec![0f32; logs.len()];
    for [at, item, head] in of.each_query() {
        let group = head / (of.heads / of.groups);
        let own = of.output(at, item, head);
        let q = &qkv[of.query(at, item, head)..][..depth];
        let d = &dout[own * depth..][..depth];
        let delta = dot(&out[own * depth..][..depth], d);
        let mut dq = vec![0f32; depth];
        for key in 0..of.keys(at) {
            let k = &qkv[of.key(key, item, group)..][..depth];
            let v = &qkv[of.value(key, item, group)..][..depth];
            let p = exp(dot(q, k) * of.scale - logs[own]);
            let of_p = dot(d, v) * of.kept(mask, [item, head, at, key]);
            add(&mut dq, p * (of_p - delta) * of.scale, k);
        }
        store(&mut dqkv[of.query(at, item, head)..][..depth], &dq);
        deltas[own] = delta;
    }
    let each = of.heads / of.groups;
    for own in 0..of.rows() * of.groups {
        let (group, item, at) = (
            own % of.groups,
            own / of.groups % of.batch,
            own / of.groups / of.batch,
        );
        let k = &qkv[of.key(at, item, group)..][..depth];
        let v = &qkv[of.value(at, item, group)..][..depth];
        let (mut dk, mut dv) = (vec![0f32; depth], vec![0f32; depth]);
        for head in group * each..(group + 1) * each {
            for query in if of.causal { at } else { 0 }..of.positions {
                let row = of.output(query, item, head);
                let q = &qkv[of.query(query, item, head)..][..depth];
                let d = &dout[row * depth..][..depth];
                let p = exp(dot(q, k) * of.scale - logs[row]);
                let keep = of.kept(mask, [item, head, query, at]);
                let of_p = dot(d, v) * keep;
                add(&mut dv, p * keep, d);
                add(&mut dk, p * (of_p - deltas[row]) * of.scale, q);
            }
        }
        store(&mut dqkv[of.key(at, item, group)..][..depth], &dk);
        store(&mut dqkv[of.value(at, item, group)..][..depth], &dv);
    }
}
