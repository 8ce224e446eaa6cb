//! Every rank's memory at once: the warps of copies, stores, adds, sums and signals, and what keeps each of them from being
//! right when one node is missing or elsewhere.

use crate::fixtures::multicast::{self, REAL, Sizes};
use crate::fixtures::wide::{sampled, wide};
use crate::generator::warps::{Warps, accepted_everywhere, rule, warps};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Kernel, OpKind, Region, visit};
use counterflow_codegen::lower::lower;
use counterflow_codegen::program::{CounterId, Home, Program, StoreMode};
use counterflow_codegen::sm90;
use counterflow_codegen::variant::{Scales, Variant};
use counterflow_codegen::verify;
use counterflow_codegen::warp::{Expr, Node, Pipeline, Whose};
use counterflow_emitter as cuda;

fn of(program: &Program, variant: &Variant) -> Pipeline {
    let kernel = lower(program, variant).and_then(verify::kernel);
    let kernel = kernel.unwrap_or_else(|found| panic!("{}: {found}", program.name));
    sm90::build(&kernel).unwrap_or_else(|found| panic!("{}: {found}", program.name))
}

fn built(program: &Program, world: u32) -> Pipeline {
    of(program, &Variant::new(world))
}

#[test]
fn each_word_has_right_warps() {
    let sizes = [
        REAL,
        Sizes {
            tile: (128, 128),
            ..REAL
        },
        Sizes {
            tile: (256, 128),
            chunk: 256,
            ..REAL
        },
        Sizes {
            dtype: Dtype::F16,
            sums: Dtype::F16,
            ..REAL
        },
        Sizes {
            tile: (128, 128),
            sums: Dtype::F32,
            ..REAL
        },
    ];
    for (at, sizes) in sizes.into_iter().enumerate() {
        let all = multicast::all(sizes).into_iter();
        let all = all.flat_map(|program| [1, 2, 3, 8].map(|world| (program.clone(), world)));
        for (program, world) in sampled(all.skip(if wide() { 0 } else { 3 * at }), 15) {
            let verdict = verify::pipeline(built(&program, world));
            if let Err(found) = verdict {
                panic!("{} {:?}, {world} ranks: {found}", program.name, sizes.tile);
            }
        }
    }
}

/// Random schedules that the tile level accepts have right warps, or are refused by a rule at a statement.
#[test]
fn random_ones_have_right_warps() {
    let cases = if wide() { 120 } else { 12 };
    let (mut right, mut refused) = (0, Vec::new());
    let mut by_way = [0; 4];
    for case in accepted_everywhere(45).take(cases) {
        for (count, way) in by_way.iter_mut().zip(ways(&case.kernel)) {
            *count += u32::from(way);
        }
        match warps(&case.kernel) {
            Warps::Right(_) => right += 1,
            Warps::Refused(found) => refused.push(rule(&found.first().message)),
            Warps::Wrong(found) => {
                panic!("case {}: {found}\n{:#?}", case.number, case.case.program)
            }
        }
    }
    assert!(right * 5 >= cases * 4, "{right} of {cases}: {refused:?}");
    assert!(by_way.iter().all(|count| *count > 0), "{by_way:?}");
}

/// Whether a kernel copies, stores, adds and sums everywhere.
fn ways(kernel: &Kernel) -> [bool; 4] {
    let mut ways = [false; 4];
    let is = |region: &Region| region.home == Home::Everywhere;
    for role in &kernel.roles {
        visit(&role.body, &mut |op| match &op.kind {
            OpKind::Copy { dst, .. } => ways[0] |= is(dst),
            OpKind::Store { dst, mode, .. } => match mode {
                StoreMode::Write => ways[1] |= is(dst),
                StoreMode::Add => ways[2] |= is(dst),
            },
            OpKind::Reduce { from, .. } => ways[3] |= is(from),
            OpKind::Wait { .. }
            | OpKind::Signal { .. }
            | OpKind::Dot { .. }
            | OpKind::Load { .. }
            | OpKind::ForRanks { .. }
            | OpKind::If { .. } => {}
        });
    }
    ways
}

/// Elements of one byte are moved as they are; scales that travel with them go to one rank at a time.
#[test]
fn bytes_go_everywhere_and_their_scales_do_not() {
    let program = multicast::ag_gemm(Sizes { k: 128, ..REAL });
    let plain = of(&program, &Variant::new(3).dtype(Dtype::E4M3));
    let text = cuda::emit(&verify::pipeline(plain).expect("accepted")).text;
    assert!(text.contains("multicast_store<"), "{text}");
    let kernel = lower(
        &program,
        &Variant::new(3).dtype(Dtype::E4M3).scales(Scales::PerRow),
    );
    let kernel = kernel.and_then(verify::kernel).expect("a kernel");
    let found = sm90::build(&kernel).expect_err("refused");
    insta::assert_snapshot!(found.first().text(&|_| String::new()), @"
    error[resources]: scales in every rank's memory at once
      help: a loop over ranks, `.on(rank)`; elements go everywhere without them: `x.everywhere().data()[c]`
    ");
}

/// What the verifier says of a pipeline in which one thing was changed, which is there.
fn said(program: &Program, change: &dyn Fn(&mut Vec<Node>) -> usize) -> String {
    let mut pipeline = built(program, 3);
    let mut done = 0;
    pipeline.lists(&mut |list| done += change(list));
    assert!(done > 0, "{}: nothing to change", program.name);
    let found = match verify::pipeline(pipeline) {
        Ok(_) => return "accepted".into(),
        Err(found) => found,
    };
    let text = found.first().text(&|_| String::new());
    let place = |line: &str| line.replace(" of block 0 on rank", " on rank");
    text.lines().map(place).collect::<Vec<_>>().join("\n")
}

/// Drops nodes of a list that stand before the first one of another kind, or behind the last.
fn without(list: &mut Vec<Node>, drop: impl Fn(&[Node], usize) -> bool) -> usize {
    let kept: Vec<bool> = (0..list.len()).map(|at| !drop(list, at)).collect();
    let before = list.len();
    let mut kept = kept.into_iter();
    list.retain(|_| kept.next() != Some(false));
    before - list.len()
}

/// Whether a node, or one within it, accesses every rank's memory.
fn reaches(node: &Node) -> bool {
    let mut found = false;
    node.visit(&mut |node| found |= node.is_everywhere());
    found
}

fn fence_before(nodes: &[Node], at: usize) -> bool {
    nodes[at] == Node::FenceAlias && nodes[at..].iter().any(reaches)
}

fn fence_behind(nodes: &[Node], at: usize) -> bool {
    nodes[at] == Node::FenceAlias && nodes[..at].iter().any(reaches)
}

#[test]
fn a_fence_stands_between_the_addresses_of_one_memory() {
    let ag = multicast::ag_gemm(REAL);
    insta::assert_snapshot!(said(&ag, &|list| without(list, fence_behind)), @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0 into x of stage 2 for tile (0, 0)
      = store on rank 1 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0, on every rank
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    insta::assert_snapshot!(said(&ag, &|list| without(list, fence_before)), @"
    error[race]: store on rank 0 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0, on every rank
      = the caller fills or takes rows 0..192, columns 0..1088 of x (shard or slot 0) on rank 1 between launches
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_alias` after the wait on a counter, before the memory of all ranks is touched at once
    ");
    let gemm_ag = multicast::gemm_ag(REAL);
    insta::assert_snapshot!(said(&gemm_ag, &|list| without(list, fence_behind)), @"
    error[race]: store on rank 2 ends while its lanes access every rank's memory
      = no fence between the memory's addresses, or no meeting of the lanes, comes after them
      help: `fence_alias`, then `__syncwarp`, after what all lanes do
    ");
    let ar = multicast::gemm_ar(REAL);
    insta::assert_snapshot!(said(&ar, &|list| without(list, fence_before)), @"
    error[race]: load on rank 1 sums rows 0..128, columns 0..64 of partial (shard or slot 1) on rank 0, on every rank, into x of stage 0 for tile (0, 0)
      = store on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of partial (shard or slot 1) on rank 0 for tile (0, 0)
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_alias` after the wait on a counter, before the memory of all ranks is touched at once
    ");
    insta::assert_snapshot!(said(&ar, &|list| without(list, fence_behind)), @"
    error[race]: load on rank 0 ends while its lanes access every rank's memory
      = no fence between the memory's addresses, or no meeting of the lanes, comes after them
      help: `fence_alias`, then `__syncwarp`, after what all lanes do
    ");
}

/// Whoever reads by TMA what came by a multicast address has waited by ordinary loads: a proxy fence stands behind the wait.
#[test]
fn a_proxy_fence_stands_before_tma_reads_what_came() {
    let ag = multicast::ag_gemm(REAL);
    let loads = |nodes: &[Node], at: usize| {
        let mut found = false;
        nodes[at..].iter().for_each(|node| {
            node.visit(&mut |node| {
                found |= matches!(node, Node::Load { .. }) && !node.is_everywhere();
            });
        });
        found
    };
    let drop = |list: &mut Vec<Node>| {
        without(list, |nodes, at| {
            let waits = |node: &Node| matches!(node, Node::CounterWait { .. });
            let behind = nodes[..at].iter().any(waits);
            nodes[at] == Node::FenceGlobal && (behind || loads(nodes, at))
        })
    };
    insta::assert_snapshot!(said(&ag, &drop), @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0 into x of stage 2 for tile (0, 0)
      = store on rank 1 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0, on every rank
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_global` after the wait on a counter, before TMA touches the data
    ");
}

/// A rank writes everywhere once all others have granted it, and reads everywhere only what they announced.
#[test]
fn nothing_is_touched_everywhere_before_all_have_granted_it() {
    let counter = |program: &Program, name: &str| {
        let kernel = lower(program, &Variant::new(3)).expect("a kernel");
        let found = kernel.counters.iter().position(|it| it.name == name);
        CounterId(found.expect("a counter") as u16)
    };
    let ag = multicast::ag_gemm(REAL);
    let ready = counter(&ag, "ready_x");
    let ungranted = |list: &mut Vec<Node>| {
        without(
            list,
            |nodes, at| matches!(&nodes[at], Node::CounterAdd { counter, .. } if *counter == ready),
        )
    };
    insta::assert_snapshot!(said(&ag, &ungranted), @"
    error[progress]: load on rank 0 waits for a staging buffer to be empty, for ever
      = load on rank 0 waits for a staging buffer to be empty
      = store on rank 0 waits for ready_x[1]: saw 0, wants 1
      = multiply on rank 0 waits for a stage to be full
      = multiply on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for a staging buffer to be empty
    ");
    let unasked = |ready: CounterId| {
        move |list: &mut Vec<Node>| {
            without(
                list,
                |nodes, at| matches!(&nodes[at], Node::CounterWait { counter, .. } if *counter == ready),
            )
        }
    };
    insta::assert_snapshot!(said(&ag, &unasked(ready)), @"
    error[race]: store on rank 0 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0, on every rank
      = the caller fills or takes rows 0..192, columns 0..1088 of x (shard or slot 0) on rank 1 between launches
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    let ar = multicast::gemm_ar(REAL);
    insta::assert_snapshot!(said(&ar, &unasked(counter(&ar, "ready_y"))), @"
    error[race]: store on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 0) on rank 0, on every rank for tile (0, 0)
      = the schedule waits for ready_y[1] before this, in the same item
      help: wait in the order of the statements, in this thread or in one that it waits for
    ");
}

#[test]
fn lanes_meet_between_what_one_waits_for_and_what_all_do() {
    let after_a_fence = |of: fn(&[Node], usize) -> bool| {
        move |list: &mut Vec<Node>| {
            without(list, |nodes, at| {
                nodes[at] == Node::SyncWarp && at > 0 && of(nodes, at - 1)
            })
        }
    };
    let ag = multicast::ag_gemm(REAL);
    insta::assert_snapshot!(said(&ag, &after_a_fence(fence_before)), @"
    error[race]: store on rank 0 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0, on every rank
      = the first lane of its warp has waited for a counter, and the others have not met it since
      help: `__syncwarp` between the wait and what all lanes do
    ");
    insta::assert_snapshot!(said(&ag, &after_a_fence(fence_behind)), @"
    error[race]: load of block 2 on rank 0 loads rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0 into x of stage 2 for tile (0, 0)
      = store on rank 1 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 1) on rank 0, on every rank
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
    let ar = multicast::gemm_ar(REAL);
    insta::assert_snapshot!(said(&ar, &after_a_fence(fence_behind)), @"
    error[race]: multiply on rank 0 reads x of stage 0
      = load on rank 0 sums rows 0..128, columns 0..64 of partial (shard or slot 0) on rank 0, on every rank, into x of stage 0 for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// All lanes have read a box when TMA fills its place again.
#[test]
fn a_place_is_read_by_all_lanes_before_it_is_filled() {
    let behind_a_store = |wanted: Node| {
        move |list: &mut Vec<Node>| {
            without(list, |nodes, at| {
                nodes[at] == wanted
                    && at > 0
                    && nodes[..at].last().is_some_and(|before| {
                        before.is_everywhere() || *before == Node::FenceShared
                    })
            })
        }
    };
    let ag = multicast::ag_gemm(REAL);
    insta::assert_snapshot!(said(&ag, &behind_a_store(Node::FenceShared)), @"
    error[race]: load on rank 0 loads rows 0..128, columns 768..832 of x (shard or slot 0) on rank 0 into staging buffer 0
      = store on rank 0 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0, on every rank
      = a barrier or a counter orders them, but no proxy fence
      help: `fence_async_shared` after ordinary accesses, before the slot is released
    ");
    insta::assert_snapshot!(said(&ag, &behind_a_store(Node::SyncWarp)), @"
    error[race]: load on rank 0 loads rows 0..128, columns 768..832 of x (shard or slot 0) on rank 0 into staging buffer 0
      = store on rank 0 stores staging buffer 0 to rows 0..128, columns 0..64 of x (shard or slot 0) on rank 0, on every rank
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

#[test]
fn a_signal_comes_after_the_stores_of_all_lanes() {
    let early = |list: &mut Vec<Node>| {
        let store = list.iter().position(reaches);
        let signal = list.iter().position(
            |node| matches!(node, Node::CounterAdd { whose, .. } if *whose == Whose::Everywhere),
        );
        let (Some(store), Some(signal)) = (store, signal) else {
            return 0;
        };
        // With the number of its cell.
        let moved: Vec<Node> = list.drain(signal - 1..=signal).collect();
        list.splice(store..store, moved);
        1
    };
    insta::assert_snapshot!(said(&multicast::gemm_ag(REAL), &early), @"
    error[reuse]: a launch ends on rank 2 before the writes there are complete
      = store on rank 0 stores subtile 0 to rows 128..192, columns 0..64 of y (shard or slot 0) on rank 0, on every rank for tile (1, 0)
      help: signal when the stores are complete, and wait for that signal before the end
    ");
    insta::assert_snapshot!(said(&multicast::added(REAL), &early), @"
    error[race]: store on rank 0 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 1) on rank 0, on every rank for tile (0, 0)
      = store on rank 1 stores subtile 0 to rows 0..128, columns 0..64 of y (shard or slot 1) on rank 0, on every rank for tile (0, 0)
      = nothing orders these two
      help: wait for a signal that the first one is complete
    ");
}

/// An access or a signal that goes to this rank alone leaves the others without.
#[test]
fn what_goes_everywhere_goes_to_every_rank() {
    let home = |list: &mut Vec<Node>| {
        let mut done = 0;
        for mut node in std::mem::take(list) {
            let mut found = false;
            if let Node::Store { at, .. } = &mut node
                && at.whose == Whose::Everywhere
            {
                at.whose = Expr::me().into();
                found = true;
            }
            list.push(node);
            if found {
                // What a store in bulk needs.
                list.extend([Node::Commit, Node::AwaitStores { pending: 0.into() }]);
                done += 1;
            }
        }
        done
    };
    insta::assert_snapshot!(said(&multicast::gemm_ag(REAL), &home), @"error[coverage]: 50688 of 151536 elements of y on rank 0 are written");
    let signal = |list: &mut Vec<Node>| {
        let mut done = 0;
        for node in list {
            if let Node::CounterAdd { whose, .. } = node
                && *whose == Whose::Everywhere
            {
                *whose = Expr::me().into();
                done += 1;
            }
        }
        done
    };
    insta::assert_snapshot!(said(&multicast::ag_gemm(REAL), &signal), @"
    error[progress]: load on rank 0 waits for arrived[3] for tile (1, 0), for ever
      = load on rank 0 waits for arrived[3] for tile (1, 0): saw 0, wants 2
      = store on rank 0 waits for a subtile to be full for tile (1, 0)
      = multiply on rank 0 waits for a stage to be full
      = multiply on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for arrived[3] for tile (1, 1): saw 0, wants 2
    ");
}

/// A sum takes what every rank has announced, and one rank's part is no sum.
#[test]
fn a_sum_waits_for_every_rank() {
    let ar = multicast::gemm_ar(REAL);
    let unwaited = |list: &mut Vec<Node>| {
        let sums = list
            .iter()
            .any(|node| matches!(node, Node::For { .. }) && reaches(node));
        let wait = list.iter().position(|node| {
            let mut waits = false;
            node.visit(&mut |node| waits |= matches!(node, Node::CounterWait { .. }));
            waits
        });
        match wait.filter(|_| sums) {
            Some(wait) => {
                list.remove(wait);
                1
            }
            None => 0,
        }
    };
    insta::assert_snapshot!(said(&ar, &unwaited), @"
    error[race]: load on rank 0 sums rows 0..128, columns 0..64 of partial (shard or slot 0) on rank 0, on every rank, into x of stage 0 for tile (0, 0)
      = not everything that the schedule orders before it came before it
      = conflicting accesses of 0 elements came before it in its launch, where 8192 should
      help: wait for everything that the schedule waits for, in this thread or in one that it waits for
    ");
    let own = |list: &mut Vec<Node>| {
        let mut done = 0;
        for node in list {
            if let Node::Load { at, .. } = node
                && at.whose == Whose::Everywhere
            {
                at.whose = Expr::me().into();
                done += 1;
            }
        }
        done
    };
    insta::assert_snapshot!(said(&ar, &own), @"
    error[progress]: load on rank 0 waits for a stage to be empty for tile (0, 0), for ever
      = load on rank 0 waits for a stage to be empty for tile (0, 0)
      = store on rank 0 waits for a subtile to be full for tile (0, 0)
      = multiply on rank 0 waits for a stage to be full
      = multiply on rank 0 waits for a stage to be full
      = load of block 1 on rank 0 waits for a stage to be empty for tile (0, 1)
    ");
}

/// The dump says how many instructions a signal is, and where data goes.
#[test]
fn the_dump_says_what_goes_everywhere() {
    let text = built(&multicast::gemm_ar(REAL), 3).text();
    for line in [
        "store: all lanes of warp 1",
        "load stage.x <- partial{t.column * TILE_N + part * SUBTILE_N, t.row * TILE_M, me, everywhere}",
        "signal done.everywhere[done_cell] += 1, by one instruction",
        "fence the ranks' own addresses from multicast ones",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}
