//! A built schedule, and its launches.
//!
//! # Why each safe call is sound
//!
//! All work of a rank on the GPU (launches, replays, copies, fills, clears, frees) is in the order of the rank's own
//! stream; a caller's stream is joined to it by events before and after. So whatever a rank frees or overwrites comes
//! after everything that it enqueued before. Memory that peers use is given out again only after every rank dropped it
//! and every rank's stream has passed that point.
//!
//! | call | why no use of it corrupts memory, gives a wrong result or hangs unexplained |
//! |---|---|
//! | `Communicator::{local, on, loopback, emulated}` | they make GPUs, streams and a heap, and share none of it with anybody else |
//! | `Communicator::each` | a rank that fails or panics ends the communicator, and its peers' waits |
//! | `Communicator::{reserve, allocate, barrier}` | ranks compare name, shape and type, and a wait for a rank ends with the communicator or after the time limit; new memory is cleared in the order of the ranks' streams |
//! | `Communicator::{op, op_of}`, `OpBuilder::build` | only what the verifier accepted is compiled; ranks compare what they load; cells and scratch are the communicator's, with credits that order all kernels that share them |
//! | `Op::on`, `Launch::tensor` and the methods of a launcher | they enqueue nothing; memory stays borrowed until `launch` |
//! | `Launch::launch` | type, shape, alignment, rank, heap and overlap of every tensor are checked, the plan is made by the op's own series, and the ledger compares the launch with the peers' before anything is enqueued; what it uses is freed in stream order only; every wait of a kernel is bounded |
//! | the same with cudarc's slices and views | the launch comes after the stream and the events of the slice, and these come after the launch, also for its free; `&mut` excludes other uses within the call |
//! | `Pending::{wait, is_done}` | they look at the ranks' verdicts first, so results of a launch that gave up are not taken for results |
//! | `Pending::wait_on`, drop | the one adds an order, the other does nothing |
//! | `Communicator::capture`, `Graph::launch`, drop | the graph holds memory and kernels; a replay writes every launch into the ledger; a dropped graph is destroyed when its replays are done; other recording streams are refused, the rank's own too, since nothing would hold what they use; a refused replay ends the communicator, as a launch does |
//! | `Communicator::zeros`, `Tensor::{rows, write, fill, copy_from, read}` | ranges and sizes are compared, products of sizes do not wrap; copies and frees are in stream order; `read` waits with a time limit and looks at the verdicts |
//! | `UserBuffer::{write, write_on, read, read_on, copy_from, copy_to, fill}` | the same; a peer's part is in the same heap. Rows that a peer writes at the same time are unordered numbers, never other memory |
//! | `Tensor::address`, `UserBuffer::{address, on}`, `Address::get` | a number; to use it is another library's `unsafe` call |
//! | `Communicator::{synchronize, abort}`, drop | bounded; they end waits and free nothing that is in use |
//! | `Communicator::stream`, `Gpu::context` | work of other libraries beside ours is in stream order; from then on our launches never start early |
//! | `OpBuilder::early_after_foreign_kernels` | it states a condition on other libraries' kernels; their launch is `unsafe` |
//!
//! Ranks that share a GPU share the driver's locks. Wait for a stream before you copy from it to pageable memory
//! (`CudaStream::synchronize`, then `clone_dtoh`), and pin or free no memory outside a pool while a rank runs: in such a
//! call the driver keeps a peer from making events, and the launch that you wait for may never come.
//!
//! What cannot be checked is `unsafe`: `Communicator::tensor_from_raw`, `Recording::stream`,
//! `cuda::Gpu::borrowed_stream`, `cuda::Function::launch`, `launch::Tensors::local`. The modules `launch` and `gpus` are for the bench and for tests, and
//! hidden: there the caller keeps what a launch uses, on the communicator that it belongs to.

mod argument;
mod builder;
mod built;
mod given;
mod launch;
mod typed;

pub use crate::caller::Caller;
pub use crate::driver::Element;
pub use argument::Needs;
pub use builder::{OpBuilder, Workspace};
pub use built::{ByName, Op};
pub use given::{Argument, Input, Output};
pub use launch::Launch;
pub use typed::{Launcher, Schedule};
