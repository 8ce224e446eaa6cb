//! Jobs over TCP, in peace and under attack.

use super::*;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

const LONG: Duration = Duration::from_secs(60);

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn secret() -> Secret {
    Secret::of(b"a line of random text")
}

/// Rank 0 on that listener, the others by its address.
fn joined(listener: &TcpListener, rank: u32, world: u32, limit: Duration) -> Result<Tcp, Error> {
    match rank {
        0 => Tcp::lead(listener, world, &secret(), limit),
        _ => Tcp::join(
            rank,
            world,
            listener.local_addr().expect("an address"),
            &secret(),
            limit,
        ),
    }
}

fn all<T: Send>(world: u32, f: impl Fn(u32) -> Result<T, Error> + Sync) -> Vec<Result<T, Error>> {
    std::thread::scope(|scope| {
        let f = &f;
        let ranks: Vec<_> = (0..world)
            .map(|rank| scope.spawn(move || f(rank)))
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("no panic"))
            .collect()
    })
}

#[test]
fn all_get_all_messages_of_any_length() {
    let (listener, _) = listener();
    let gathered = all(4, |rank| {
        let job = joined(&listener, rank, 4, LONG)?;
        (0..20).try_for_each(|_| job.barrier(LONG))?;
        job.all_gather(&vec![rank as u8; rank as usize * LONGEST / 3], LONG)
    });
    for all in gathered {
        let all = all.expect("gathered");
        assert_eq!(all.len(), 4);
        for (rank, message) in all.iter().enumerate() {
            assert_eq!(*message, vec![rank as u8; rank * LONGEST / 3]);
        }
    }
}

#[test]
fn ranks_that_never_come_are_named_by_all_that_do() {
    let (listener, _) = listener();
    let limit = Duration::from_millis(300);
    let start = Instant::now();
    let told = all(5, |rank| match rank {
        1 | 3 => Ok(()),
        _ => joined(&listener, rank, 5, limit)?.barrier(limit),
    });
    assert!(start.elapsed() < limit + 4 * GRACE, "{:?}", start.elapsed());
    for rank in [0, 2, 4] {
        let error = told[rank].as_ref().expect_err("too few");
        assert_eq!(error.kind(), "rendezvous");
        assert!(
            error
                .to_string()
                .contains("ranks 1, 3 did not join within 300ms"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_stops_is_named_by_all_others() {
    let (listener, _) = listener();
    let limit = Duration::from_millis(300);
    let told = all(3, |rank| {
        let job = joined(&listener, rank, 3, LONG)?;
        job.barrier(LONG)?;
        if rank == 1 {
            std::thread::sleep(4 * GRACE);
            return Ok(());
        }
        let late = job.barrier(limit);
        assert!(job.barrier(limit).is_err(), "it has ended");
        late
    });
    for rank in [0, 2] {
        let error = told[rank].as_ref().expect_err("alone");
        assert!(
            error
                .to_string()
                .contains("rank 1 did not come within 300ms"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_whose_process_ends_is_named_at_once() {
    let (listener, _) = listener();
    let start = Instant::now();
    let told = all(3, |rank| {
        let job = joined(&listener, rank, 3, LONG)?;
        job.barrier(LONG)?;
        if rank == 2 {
            return Ok(());
        }
        job.barrier(LONG)
    });
    assert!(start.elapsed() < Duration::from_secs(20));
    for rank in [0, 1] {
        let error = told[rank].as_ref().expect_err("one is gone").to_string();
        assert!(
            error.contains("the connection to rank 2 is gone"),
            "{error}"
        );
    }
}

#[test]
fn two_processes_with_one_rank_and_other_worlds_are_told() {
    let (listener, _) = listener();
    let limit = Duration::from_millis(500);
    let told = all(3, |thread| {
        joined(&listener, thread.min(1), 3, limit).map(drop)
    });
    assert!(
        told[0]
            .as_ref()
            .expect_err("too few")
            .to_string()
            .contains("rank 2 did not join")
    );
    let twice: Vec<_> = told[1..]
        .iter()
        .filter_map(|told| told.as_ref().err())
        .collect();
    assert_eq!(twice.len(), 1);
    assert!(
        twice[0]
            .to_string()
            .starts_with("rank 1 of this job is there already"),
        "{}",
        twice[0]
    );

    let told = all(2, |rank| joined(&listener, rank, 2 + rank, limit).map(drop));
    let told = told.map_each();
    assert_eq!(
        told[0],
        "rank 1 says that there are 3 ranks, and rank 0 that there are 2"
    );
    assert_eq!(told[1], "rank 0 counts another number of ranks than 3");
}

trait Told {
    fn map_each(self) -> Vec<String>;
}

impl Told for Vec<Result<(), Error>> {
    fn map_each(self) -> Vec<String> {
        self.into_iter()
            .map(|told| told.expect_err("refused").to_string())
            .collect()
    }
}

#[test]
fn a_wrong_secret_gets_nobody_in_and_neither_side_says_more() {
    let (listener, address) = listener();
    let limit = Duration::from_millis(400);
    let told = all(2, |rank| match rank {
        0 => joined(&listener, 0, 2, limit).map(drop),
        _ => Tcp::join(
            1,
            2,
            address,
            &Secret::of(b"a guess, as good as any"),
            limit,
        )
        .map(drop),
    });
    let told = told.map_each();
    assert_eq!(told[0], "rank 1 did not join within 400ms");
    assert!(
        told[1].contains("does not know this job's secret"),
        "{}",
        told[1]
    );
    for told in told {
        assert!(
            !told.contains("random text") && !told.contains("guess"),
            "{told}"
        );
    }
}

/// What a stranger at the door does.
fn attack(address: SocketAddr, kind: usize, over: &AtomicBool) {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(5)) else {
        return;
    };
    // A closed connection is what strangers get.
    let _ = match kind {
        0 => stream.write_all(&[0xff; 4096]),
        1 => stream.write_all(&u32::MAX.to_le_bytes()),
        // Half an answer, and then nothing.
        2 => stream.write_all(&[1; 40]),
        // A whole answer, made of guesses.
        3 => stream.write_all(&[2; 72]),
        // An answer, a byte at a time.
        4 => (0..72u8).try_for_each(|byte| {
            std::thread::sleep(Duration::from_millis(5));
            stream.write_all(&[byte])
        }),
        // What rank 0 sent, sent back.
        _ => {
            let mut challenge = [0; 40];
            stream
                .read_exact(&mut challenge)
                .and_then(|()| stream.write_all(&[&challenge[..], &challenge[..32]].concat()))
        }
    };
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn strangers_at_the_door_neither_join_nor_delay_those_who_do() {
    const STRANGERS: usize = 4;
    let (listener, address) = listener();
    let over = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        for stranger in 0..STRANGERS {
            let over = &over;
            // Each of them again and again.
            scope.spawn(move || {
                for kind in (stranger..).take_while(|_| !over.load(Ordering::Relaxed)) {
                    let once = AtomicBool::new(true);
                    attack(address, kind % 6, &once);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        for kind in 0..6 {
            let over = &over;
            scope.spawn(move || attack(address, kind, over));
        }
        let start = Instant::now();
        let (mut silent, mut came) = (VecDeque::new(), 0);
        let gathered = std::thread::scope(|job| {
            let listener = &listener;
            let rank = move |rank| {
                let job = joined(listener, rank, 4, LONG)?;
                job.all_gather(&[rank as u8], LONG)
            };
            let first = job.spawn(move || rank(0));
            // More connections than can stand at the door, all of which stay and say nothing.
            let timeout = Duration::from_secs(5);
            for _ in 0..1000 {
                came += usize::from(TcpStream::connect_timeout(&address, timeout).is_ok_and(
                    |one| {
                        silent.push_back(one);
                        true
                    },
                ));
                // A process has a thousand file descriptors, for both ends.
                if silent.len() > 300 {
                    silent.pop_front();
                }
            }
            let others = [1, 2, 3].map(|other| job.spawn(move || rank(other)));
            let all = [first].into_iter().chain(others);
            all.map(|rank| rank.join().expect("no panic"))
                .collect::<Vec<_>>()
        });
        over.store(true, Ordering::Relaxed);
        drop(silent);
        (start.elapsed(), came, gathered)
    });
    let (took, came, gathered) = took;
    assert!(came > 900, "only {came} strangers came");
    for all in gathered {
        assert_eq!(all.expect("gathered"), [[0], [1], [2], [3]]);
    }
    assert!(took < LONG / 2, "{took:?}");
}
