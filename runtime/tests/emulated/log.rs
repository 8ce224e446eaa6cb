//! What a program sees that logs at the level of debug.

use crate::schedules::{self, Sender};
use counterflow_runtime::{Communicator, Error};
use half::bf16;
use std::io::Write;
use std::sync::{Arc, Mutex};
use tracing_subscriber::fmt;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("whole").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_made_is_told_in_order_with_its_sizes() -> Result<(), Error> {
    let lines = Lines::default();
    let to = lines.clone();
    let subscriber = fmt().with_max_level(tracing::Level::DEBUG).without_time();
    let subscriber = subscriber.with_ansi(false).with_writer(move || to.clone());
    // With one subscriber alone, what threads without any reach first is taken to be of no interest to anybody.
    let other = fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(std::io::sink);
    let _other = tracing::Dispatch::new(other.finish());
    tracing::subscriber::with_default(subscriber.finish(), || {
        let ranks = Communicator::emulated(1)?;
        let rank = &ranks[0];
        rank.reserve(1 << 21)?;
        let program = schedules::gather(Sender::Ctas(4));
        let op = rank.op(&program).up_to(300, 64, 64).build()?;
        let x = rank.allocate::<bf16>("x", [300, 64])?;
        let (w, mut y) = (
            rank.zeros::<bf16>([64, 64])?,
            rank.zeros::<bf16>([300, 64])?,
        );
        let graph = rank.capture(|s| {
            let launch = op.on(s).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).launch().map(drop)
        })?;
        graph.launch(rank)?.wait()?;
        let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
        launch.tensor("y", &mut y).rows(40).launch()?.wait()?;
        rank.abort("no more");
        Ok::<_, Error>(())
    })?;
    let text = String::from_utf8(lines.0.lock().expect("whole").clone()).expect("text");
    let wanted = [
        "communicator ranks=1 gpus=[0] slot_bytes=8589934592 time_limit=",
        "heap reserved rank=0 bytes=2097152",
        "op built rank=0 schedule=gather variant=sm90 world 1 nt",
        "buffer rank=0 name=x shape=[300, 64] bytes=38400 offset=",
        "graph rank=0 launches=1",
        "launch rank=0 schedule=gather variant=sm90 world 1 nt",
        "communicator ended cause=rank 0 ended the communicator: no more",
    ];
    let levels = [
        "DEBUG", "DEBUG", " INFO", "DEBUG", "DEBUG", "DEBUG", "ERROR",
    ];
    let found: Vec<&str> = text.lines().collect();
    assert_eq!(found.len(), wanted.len(), "{text}");
    for ((line, wanted), level) in found.iter().zip(wanted).zip(levels) {
        assert!(
            line.starts_with(level) && line.contains(wanted),
            "{level} {wanted}: {text}"
        );
    }
    let built = found[2];
    assert!(
        built.contains("why=the only choice fused=false most="),
        "{built}"
    );
    let launched = found[5];
    assert!(
        launched.contains("rows=40 columns=64 depth=64 bytes=0 fused=false"),
        "{launched}"
    );
    Ok(())
}

/// Of two ranks the kernel both moves rows and multiplies.
#[test]
fn what_was_fused_and_how_much_was_moved_is_told() -> Result<(), Error> {
    let lines = Lines::default();
    let to = lines.clone();
    let subscriber = fmt().with_max_level(tracing::Level::DEBUG).without_time();
    let subscriber = subscriber.with_ansi(false).with_writer(move || to.clone());
    let log = tracing::Dispatch::new(subscriber.finish());
    // Of a single subscriber `tracing` keeps what the first thread at a place says of it, and rank 1 has no subscriber.
    let _other = tracing::Dispatch::new(fmt().finish());
    let ranks = Communicator::emulated(2)?;
    Communicator::each(&ranks, |rank| {
        let logged = || {
            rank.reserve(1 << 21)?;
            let program = schedules::gather(Sender::Ctas(4));
            let op = rank
                .op(&program)
                .up_to(64, 64, 64)
                .first_options()
                .build()?;
            let x = rank.allocate::<bf16>("x", [64, 64])?;
            let (w, mut y) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
            let launch = op.on(rank).tensor("x", &x).tensor("w", &w);
            launch.tensor("y", &mut y).launch()?.wait()?;
            rank.barrier()
        };
        match rank.rank() {
            0 => tracing::dispatcher::with_default(&log, logged),
            _ => logged(),
        }
    })?;
    let text = String::from_utf8(lines.0.lock().expect("whole").clone()).expect("text");
    let has = |level: &str, parts: &[&str]| {
        let mut lines = text.lines();
        let has =
            |line: &str| line.starts_with(level) && parts.iter().all(|part| line.contains(part));
        assert!(lines.any(has), "{level} {parts:?}: {text}");
    };
    has(" INFO", &["op built", "why=first options fused=true"]);
    // Half of the rows come from the peer.
    has(
        "DEBUG",
        &[
            "launch rank=0",
            "rows=64 columns=64 depth=64 bytes=4096 fused=true",
        ],
    );
    Ok(())
}
