//! Names that the user chose, in the generated CUDA: they clash with none of its own.

use crate::fixtures::wide::wide;
use counterflow_codegen::builder::*;
use counterflow_codegen::dtype::Dtype::Bf16;
use counterflow_codegen::lower::lower;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify;
use counterflow_emitter as cuda;
use std::collections::BTreeSet;

/// Four names that no text has: of three tensors and a counter.
const STRANGE: [&str; 4] = ["strangea", "strangeb", "strangec", "stranged"];

/// An all-gather whose tensors and counter have these names, alone or in ping-pong: all that its text consists of.
fn tokens(names: [&str; 4], ping_pong: bool) -> Vec<String> {
    let mut s = ScheduleBuilder::new("strange_kernel_");
    let [x, w, y, arrived] = names;
    let (x, w, y) = (s.gathered(x, Bf16), s.local(w, Bf16), s.out(y, Bf16));
    let chunks = s.chunks("strange_chunks", x, 128);
    let tiles = s.tiles(
        "strange_tiles",
        y,
        if ping_pong { (64, 64) } else { (128, 256) },
    );
    let arrived = s.counters(arrived, [chunks.into()]);
    s.comm(4, |s| {
        s.for_ranks("strange_peer", ranks().before_me(), |s, peer| {
            s.for_items("strange_p", chunks.of(me()), |s, p| {
                s.copy(x.on(&peer).at(p), x.at(p));
                s.signal(arrived.on(&peer).at(p), 1);
            });
        });
    });
    let options = GemmOptions {
        ping_pong: Some(ping_pong.into()),
        ..GemmOptions::default()
    };
    s.gemm(options, |s| {
        s.for_ranks("strange_shard", ranks().from_me(), |s, shard| {
            s.for_items("strange_t", tiles.of(&shard).grouped(8), |s, t| {
                s.wait(arrived.at(t.rows()));
                let acc = s.dot(x.at(t), w.at(t));
                s.store(y.at(t), acc);
            });
        });
    });
    let kernel = lower(&s.finish(), &Variant::new(4)).and_then(verify::kernel);
    let warps = kernel.and_then(|kernel| verify::warps(&kernel));
    let text = cuda::emit(&warps.unwrap_or_else(|found| panic!("{names:?}: {found}"))).text;
    // Without what is said about it, and quoted. A member has its dot.
    let code = text.lines().filter(|line| !line.starts_with("#include"));
    let code = code.map(|line| line.split("//").next().unwrap_or_default());
    let code: String = code.flat_map(|line| [line, "\n"]).collect();
    let mut code = code.replace("\"C\"", "");
    for built_in in ["blockIdx", "gridDim", "threadIdx"] {
        code = code.replace(&format!("{built_in}.x"), built_in);
    }
    let code = code.replace('.', " .");
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let words = code.split(|c| !word(c)).filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

/// Whether a word of the text is made of one of these names.
fn is_strange(word: &str) -> bool {
    word.to_lowercase().contains("strange")
}

/// Three names at a time; of all, one in eight unless all cases are asked for.
#[test]
fn names_of_the_user_are_none_of_the_texts_own() {
    let mut tried = BTreeSet::new();
    for ping_pong in [false, true] {
        let strange = tokens(STRANGE, ping_pong);
        let own: BTreeSet<&String> = strange.iter().filter(|word| !is_strange(word)).collect();
        // Identifiers, as a schedule's names are.
        let names = own.iter().map(|word| word.trim_start_matches('.'));
        let names = names.filter(|name| !name.starts_with(|c: char| c.is_ascii_digit()));
        let mut names: Vec<&str> = names
            .filter(|name| tried.insert((*name).to_owned()))
            .collect();
        // Where few are new, plain names stand beside them.
        names.extend(["plain_a", "plain_b", "plain_c"]);
        let mut clashes = BTreeSet::new();
        // Each is a tensor's once, and a counter's.
        let apart = if wide() { 3 } else { 192 };
        for first in (0..names.len()).step_by(apart) {
            let name = |at: usize| names[(first + at) % names.len()];
            let [x, w, y] = [0, 1, 2].map(name);
            let counters = [3, 4, 5].map(name);
            for counter in counters {
                let text = tokens([x, w, y, counter], ping_pong);
                assert_eq!(text.len(), strange.len(), "{x} {w} {y} {counter}");
                for (is, was) in text.iter().zip(&strange) {
                    if !is_strange(was) {
                        assert_eq!(is, was, "{x} {w} {y} {counter}");
                    } else if own.contains(is) {
                        clashes.insert(format!("{is} for {was}"));
                    }
                }
            }
        }
        assert!(clashes.is_empty(), "{clashes:#?}");
    }
}

/// A tensor's name that is that of the function which numbers the counter's cells.
#[test]
fn a_tensor_is_not_taken_for_the_function_of_a_counter() {
    let function = "cell_of_stranged";
    let calls = |names| {
        let text = tokens(names, false);
        text.iter().filter(|word| *word == function).count()
    };
    let [_, w, y, arrived] = STRANGE;
    assert!(calls(STRANGE) > 1, "a function and its calls");
    assert_eq!(calls([function, w, y, arrived]), calls(STRANGE));
}
