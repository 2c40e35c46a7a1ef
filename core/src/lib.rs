//! The rules of locks, as a deterministic state machine: [`Command`]s go in, an [`Answer`] and [`Event`]s come out.
//!
//! There is no clock, no I/O, no randomness and no async in here. Time enters only as commands: the host decides that a
//! session has expired and applies a command. Two machines that apply the same commands are equal byte for byte, so a
//! host can replicate the commands, or write them to a log, instead of the state. The ids of sessions, which must be random,
//! are drawn by the host, too.
//!
//! ```
//! use palisade_core::{Acquire, Answer, Command, Label, Limits, LockName, Machine, SessionId, Ttl};
//!
//! let mut machine = Machine::new(Limits::default());
//! let (session, ttl) = (SessionId::new(7)?, Ttl::from_ms(10_000)?);
//! let opened = machine.apply(Command::OpenSession { session, ttl, label: Label::new("worker-1") });
//! assert_eq!(opened.answer, Ok(Answer::Opened { session }));
//!
//! let orders = LockName::new("orders/42")?;
//! let granted = machine.apply(Command::Acquire(Acquire::exclusive(session, orders.clone())));
//! let Ok(Answer::Granted { token }) = granted.answer else { panic!("not granted") };
//! assert_eq!(token.get(), 1);
//!
//! let released = machine.apply(Command::Release { caller: None, lock: orders, token });
//! assert_eq!(released.answer, Ok(Answer::Done));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In reading order: [`Command`] is the input; [`Answer`] and [`Refusal`] go back to the caller; [`Event`]s go to all
//! other clients; [`Machine`] holds the state and applies commands; [`LockView`] and [`SessionView`] read it;
//! [`invariant::check`] lists what is always true.
#![forbid(unsafe_code)]

mod answer;
mod causes;
mod command;
mod event;
pub mod invariant;
mod limits;
mod list;
mod machine;
mod number;
mod seal;
mod signed;
mod slab;
mod snapshot;
mod text;
mod view;

pub use answer::{Answer, Applied, Refusal};
pub use causes::write_with_causes;
pub use command::{Acquire, Caller, Command, Kind, Mode, OpenAndAcquire, Patience, Reentry, Waiting, Want, Wants};
pub use event::{Departure, Ended, Ending, Event, Events, Force, LockNames, SessionEnd};
pub use limits::{Limit, Limits};
pub use machine::Machine;
pub use number::{BadNumber, Delay, RequestNo, SessionId, Ticket, Token, Ttl};
pub use seal::{Seal, SealError};
pub use signed::{Claims, Scope, SignedHead};
pub use snapshot::{RestoreError, SNAPSHOT_VERSION};
pub use text::{BadName, Label, LockName, Secret, Value};
pub use view::{Cursor, GrantState, GrantView, LockView, SessionView, WaiterView};
