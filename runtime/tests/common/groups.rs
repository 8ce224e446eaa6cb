//! Tensor-parallel groups of two in a world of four, and data-parallel groups across them, at the same time.

use counterflow::prelude::bf16;
use counterflow::{Communicator, Error, Op, Program, schedules};
use std::time::{Duration, Instant};

/// What every rank of four does. `build` makes an op of so many rows and columns, which are the depth as well.
pub fn layers(
    rank: &Communicator,
    [m, side]: [usize; 2],
    build: impl Fn(&Communicator, &Program) -> Result<Op, Error>,
) -> Result<(), Error> {
    let me = rank.rank();
    let tensor = rank.split(me / 2, 1 - me % 2)?; // the second rank is the first there
    let data = rank.split(me % 2, 0)?;
    assert_eq!((tensor.rank(), tensor.world()), (1 - me % 2, 2));
    assert_eq!((data.rank(), data.world()), (me / 2, 2));

    tensor.reserve(32 << 20)?;
    data.reserve(32 << 20)?;
    let gather = build(&tensor, &schedules::ag_gemm())?;
    let scatter = build(&data, &schedules::gemm_rs())?;
    let one = |at: usize| bf16::from_f32(f32::from(at / side == at % side));
    let unit: Vec<bf16> = (0..side * side).map(one).collect();
    let x = tensor.allocate::<bf16>("x", [m, side])?;
    let mut z = data.allocate::<bf16>("z", [m / 2, side])?;
    let (w, mut y) = (
        tensor.zeros::<bf16>([side, side])?,
        tensor.zeros::<bf16>([m, side])?,
    );
    let (v, p) = (
        data.zeros::<bf16>([side, side])?,
        data.zeros::<bf16>([m, side])?,
    );
    w.write(&unit)?;
    v.write(&unit)?;
    let streams = [tensor.gpu().stream()?, data.gpu().stream()?];
    let all = |value: u32, rows: usize| vec![bf16::from_f32(value as f32); rows * side];
    for round in 0..4 {
        let mut given = all(200, m); // peers' rows come over these
        let own = tensor.rank() as usize * m / 2 * side;
        given[own..own + m / 2 * side].copy_from_slice(&all(me + round, m / 2));
        x.write(&given)?;
        p.write(&all(me + 1 + round, m))?;
        for (group, stream) in [&tensor, &data].into_iter().zip(&streams) {
            group.synchronize().and_then(|()| group.barrier())?;
            stream.synchronize()?;
        }
        let launch = gather.on(&streams[0]).tensor("x", &x).tensor("w", &w);
        let gathered = launch.tensor("y", &mut y).launch()?;
        let launch = scatter.on(&streams[1]).tensor("x", &p).tensor("w", &v);
        let scattered = launch.tensor("y", &mut z).launch()?;
        gathered.wait()?;
        scattered.wait()?;
        // The group's first half of rows is that of its first rank, which is the later one here.
        let first = me / 2 * 2;
        let halves = [all(first + 1 + round, m / 2), all(first + round, m / 2)].concat();
        assert!(y.read()? == halves, "round {round}: gathered in a group");
        let sum = 2 * (me % 2) + 2 + 2 + 2 * round;
        assert!(
            z.read()? == all(sum, m / 2),
            "round {round}: summed over groups"
        );
    }
    // One group goes, the other and the world go on.
    drop((gather, x, w, y));
    drop(tensor);
    data.barrier()?;
    // Groups that come and go leave nothing behind. A place may serve another one only a moment later.
    let before = controls();
    for _ in 0..12 {
        let group = rank.split(me / 2, 0)?;
        group.barrier()?;
        drop(group);
        let start = Instant::now();
        while controls() > before + 4 && start.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let after = controls();
    assert!(after <= before + 4, "{before} and then {after}");
    rank.barrier()
}

/// How many mappings and file descriptors this process has of what communicators share beside their heaps.
fn controls() -> usize {
    const NAME: &str = "counterflow control";
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let mapped = maps.lines().filter(|line| line.contains(NAME)).count();
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    mapped
        + open
            .filter(|to| to.to_string_lossy().contains(NAME))
            .count()
}
