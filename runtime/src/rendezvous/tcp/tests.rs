//! Jobs over TCP, in peace and under attack.

use super::*;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    let over = AtomicUsize::new(0);
    let told = all(3, |rank| {
        let job = joined(&listener, rank, 3, LONG)?;
        job.barrier(LONG)?;
        if rank == 1 {
            let start = Instant::now();
            while over.load(Ordering::Relaxed) < 2 && start.elapsed() < 10 * GRACE {
                std::thread::sleep(Duration::from_millis(5));
            }
            return Ok(());
        }
        let late = job.barrier(limit);
        assert!(job.barrier(limit).is_err(), "it has ended");
        over.fetch_add(1, Ordering::Relaxed);
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

/// Runs them beside each other: each waits more than it computes.
fn beside_each_other<const N: usize>(some: [&(dyn Fn() + Sync); N]) {
    std::thread::scope(|scope| some.iter().for_each(|one| drop(scope.spawn(one))));
}

#[test]
fn two_processes_with_one_rank_and_other_worlds_are_told() {
    beside_each_other([
        &two_processes_with_one_rank,
        &two_processes_with_other_worlds,
    ]);
}

fn two_processes_with_one_rank() {
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
}

fn two_processes_with_other_worlds() {
    let (listener, _) = listener();
    let limit = Duration::from_millis(500);
    let told = all(2, |rank| joined(&listener, rank, 2 + rank, limit).map(drop));
    let told = told.map_each();
    assert_eq!(
        told[0],
        "rank 1 says that there are 3 ranks, and rank 0 that there are 2"
    );
    assert_eq!(told[1], "rank 0 counts another number of ranks than 3");
}

/// Whoever comes first or late, and whatever its world: all hear why the job does not begin, long before the limit.
#[test]
fn a_rank_with_another_world_is_told_to_all_at_once() {
    beside_each_other(
        [0, 1, 3]
            .map(|odd| move || rank_has_another_world(odd))
            .each_ref()
            .map(|one| one as _),
    );
}

fn rank_has_another_world(odd: u32) {
    let (listener, _) = listener();
    let start = Instant::now();
    let told = all(4, |rank| {
        // Some are there before rank 1 says what it counts, and one comes afterwards.
        std::thread::sleep(Duration::from_millis([0, 200, 0, 500][rank as usize]));
        joined(
            &listener,
            rank,
            if rank == odd { 5 + rank } else { 4 },
            LONG,
        )?
        .barrier(LONG)
    });
    assert!(start.elapsed() < LONG / 4, "{:?}", start.elapsed());
    for (rank, told) in told.map_each().iter().enumerate() {
        assert!(
            told.contains("that there are ")
                || told.contains("counts another number of ranks than "),
            "{odd}, rank {rank}: {told}"
        );
    }
}

#[test]
fn a_world_that_no_job_has_is_refused_before_anybody_listens() {
    let (_, address) = listener();
    for rank in [0, 1] {
        let error = Tcp::join(rank, 100_000_000, address, &secret(), LONG).expect_err("refused");
        assert_eq!(error.to_string(), "a rendezvous of 100000000 ranks");
        assert!(Tcp::join(rank, 129, address, &secret(), LONG).is_err());
    }
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
    let short = Tcp::join(1, 2, address, &Secret::of(b" short\n"), LONG).expect_err("short");
    assert_eq!(short.kind(), "usage");
    let open = SocketAddr::from(([192, 0, 2, 1], 4242));
    let none = Tcp::join(1, 2, open, &Secret::of(b"\n"), LONG).expect_err("none");
    assert_eq!(none.to_string(), "a job of several hosts has no secret");
}

/// A message that changes on its way ends the job, on both sides.
#[test]
fn a_message_that_somebody_changes_on_its_way_is_refused() {
    let (listener, address) = listener();
    let (between, door) = self::listener();
    let told = std::thread::scope(|scope| {
        // Passes on what it hears, and changes the last byte that the guest sends after it was let in.
        scope.spawn(move || {
            let (mut guest, _) = between.accept().expect("a guest");
            let mut host = TcpStream::connect(address).expect("the host");
            let pass = |from: &mut TcpStream, to: &mut TcpStream, bytes: usize, change: u8| {
                let mut piece = vec![0; bytes];
                from.read_exact(&mut piece).expect("read");
                *piece.last_mut().expect("some") ^= change;
                to.write_all(&piece).expect("written");
            };
            pass(&mut host, &mut guest, 72, 0);
            pass(&mut guest, &mut host, 72, 0);
            pass(&mut host, &mut guest, 33, 0);
            // A length, a kind, three bytes and a proof.
            pass(&mut guest, &mut host, 4 + 1 + 3 + 32, 1);
        });
        let listener = &listener;
        let host =
            scope.spawn(move || Tcp::lead(listener, 2, &secret(), LONG)?.all_gather(b"one", LONG));
        let guest =
            scope.spawn(move || Tcp::join(1, 2, door, &secret(), LONG)?.all_gather(b"two", LONG));
        [host, guest].map(|side| side.join().expect("no panic").map(drop))
    });
    let told = Vec::from(told).map_each();
    assert!(
        told[0].ends_with("a message that this job's ranks did not send"),
        "{}",
        told[0]
    );
    assert!(
        told[1].starts_with("the connection to rank 0 is gone")
            || told[1].starts_with("rank 0 gave up"),
        "{}",
        told[1]
    );
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

/// Attack of a stranger at the door.
fn attack(address: SocketAddr, kind: usize, over: &AtomicBool) {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(5)) else {
        return;
    };
    // Once all ranks are there, nobody is asked.
    let limited = stream.set_read_timeout(Some(Duration::from_secs(1)));
    limited.expect("set");
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
            let mut challenge = [0; 72];
            stream
                .read_exact(&mut challenge)
                .and_then(|()| stream.write_all(&challenge))
        }
    };
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn strangers_at_the_door_neither_join_nor_delay_those_who_do() {
    const STRANGERS: usize = 4;
    // Either is more than can stand at the door.
    let knocks = if crate::wide::wide() { 1000 } else { 350 };
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
            for _ in 0..knocks {
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
    assert!(came > knocks / 10 * 9, "only {came} strangers came");
    for all in gathered {
        assert_eq!(all.expect("gathered"), [[0], [1], [2], [3]]);
    }
    assert!(took < LONG / 2, "{took:?}");
}
