//! The registers of a run and the clients that write and read them all the time, whatever befalls the nodes.
//!
//! Everything anybody was told is on the board, under one lock that is never held while something is asked. Who reads
//! the board knows which writes are under way at any moment, and in whose groups.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::faults::register::{End, Register, Wrong};
use crate::histories::door::{Door, Kind, Request};
use crate::histories::record::{Arg, Op, Outcome, Status};
use crate::sys;
use crate::values::Random;

/// Clients that write, each its own registers; every second one by memcached's protocol.
pub(crate) const WRITERS: usize = 6;
/// Clients that read those of all.
const READERS: usize = 2;
/// Registers of a writer.
const EACH: usize = 150;
/// What has no answer within this is of unknown outcome: longer than a silent node holds up its groups.
const PATIENCE: Duration = Duration::from_secs(4);
/// Between two requests of a client, at most, in microseconds.
const REST_US: u64 = 3_000;
/// A client that reaches no node rests so long.
const AWAY: Duration = Duration::from_millis(20);
/// The last reads of a round are tried so long.
const LAST_PATIENCE: Duration = Duration::from_secs(30);
/// Wrong reads that are described.
const DESCRIBED: usize = 20;

/// A write that has no answer yet.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) name: String,
    pub(crate) sent_ns: u64,
}

/// A write that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Landed {
    pub(crate) flight: Flight,
    pub(crate) ended_ns: u64,
    pub(crate) end: End,
}

/// What is known.
#[derive(Default)]
pub(crate) struct Board {
    registers: Vec<Register>,
    /// Of each writer the registers that it writes.
    own: Vec<Vec<usize>>,
    /// Of each writer.
    pub(crate) flights: Vec<Option<Flight>>,
    /// Of this round.
    pub(crate) landed: Vec<Landed>,
    pub(crate) acknowledged: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    pub(crate) reads: u64,
    pub(crate) stale: u64,
    pub(crate) lost: u64,
    /// What was wrong, the first ones.
    pub(crate) wrongs: Vec<String>,
}

/// The registers and who uses them.
pub(crate) struct Field {
    prefix: String,
    board: Mutex<Board>,
    pub(crate) over: AtomicBool,
}

impl Field {
    /// Registers whose names begin so.
    pub(crate) fn new(prefix: String) -> Self {
        let field = Self { prefix, board: Mutex::default(), over: AtomicBool::new(false) };
        let mut board = field.board();
        for _ in 0..WRITERS {
            let own = (0..EACH).map(|_| field.add(&mut board)).collect();
            board.own.push(own);
            board.flights.push(None);
        }
        drop(board);
        field
    }

    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new register; its number.
    fn add(&self, board: &mut Board) -> usize {
        let number = board.registers.len();
        board.registers.push(Register::new(format!("{}register-{number}", self.prefix)));
        number
    }

    /// A register of one's own, for whoever disturbs.
    pub(crate) fn own(&self) -> usize {
        self.add(&mut self.board())
    }

    /// Puts new registers in place of those that nothing may be written to any more.
    pub(crate) fn renew(&self, registers: &mut [usize]) {
        let mut board = self.board();
        for register in registers {
            if board.registers[*register].is_closed() {
                *register = self.add(&mut board);
            }
        }
    }

    /// Writes each of these once, all at the same time, through one node. Called where the clients are.
    pub(crate) fn write_at_once(&self, registers: &[usize], node: SocketAddr) -> Result<()> {
        thread::scope(|scope| {
            for &register in registers {
                scope.spawn(move || {
                    // Where the node does not take the connection nothing is written.
                    let door = Door::open_within(Kind::Wire, node, PATIENCE);
                    door.is_ok_and(|mut door| self.write(register, &mut door, None) == End::Acknowledged)
                });
            }
            Ok(())
        })
    }

    /// What a register is called.
    pub(crate) fn name(&self, register: usize) -> String {
        self.board().registers[register].name.clone()
    }

    /// All clients, until it is over. Called where the clients are.
    pub(crate) fn run(&self, nodes: &[SocketAddr], seed: u64) {
        self.over.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || self.write_on(writer, nodes, seed));
            }
            for reader in 0..READERS {
                scope.spawn(move || self.read_on(reader, nodes, seed));
            }
        });
    }

    fn write_on(&self, writer: usize, nodes: &[SocketAddr], seed: u64) {
        let kind = if writer.is_multiple_of(2) { Kind::Wire } else { Kind::Memcached };
        let mut doors = Doors::new(kind, nodes, seed.wrapping_add(writer as u64));
        while !self.over.load(Ordering::Relaxed) {
            let place = doors.random.below(EACH as u64) as usize;
            let Some(mut door) = doors.take() else { continue };
            let register = self.board().own[writer][place];
            let end = self.write(register, &mut door.1, Some(writer));
            if matches!(end, End::Removed | End::Unknown) {
                let mut board = self.board();
                board.own[writer][place] = self.add(&mut board);
            }
            if end != End::Unknown {
                doors.give_back(door);
            }
            doors.rest();
        }
    }

    /// One write of a register, which is on the board while it has no answer.
    pub(crate) fn write(&self, register: usize, door: &mut Door, writer: Option<usize>) -> End {
        let mut board = self.board();
        let it = &mut board.registers[register];
        let Some(number) = it.begin() else { return End::Unknown };
        let request = request(Op::Put, it.name.clone(), it.value(number));
        let flight = Flight { name: it.name.clone(), sent_ns: sys::monotonic_ns() };
        if let Some(writer) = writer {
            board.flights[writer] = Some(flight.clone());
        }
        drop(board);
        let end = match door.ask(&request) {
            Ok((Outcome::Answered(answer), _)) if answer.status == Status::Ok => End::Acknowledged,
            Ok((Outcome::Refused(_), _)) => End::Refused,
            Ok((Outcome::Removed, _)) => End::Removed,
            Ok(_) | Err(_) => End::Unknown,
        };
        let mut board = self.board();
        board.registers[register].end(number, end);
        *match end {
            End::Acknowledged => &mut board.acknowledged,
            End::Refused | End::Removed => &mut board.refused,
            End::Unknown => &mut board.unknown,
        } += 1;
        if let Some(writer) = writer {
            board.flights[writer] = None;
            board.landed.push(Landed { flight, ended_ns: sys::monotonic_ns(), end });
        }
        end
    }

    fn read_on(&self, reader: usize, nodes: &[SocketAddr], seed: u64) {
        let kind = [Kind::Wire, Kind::Memcached][reader % 2];
        let mut doors = Doors::new(kind, nodes, seed.wrapping_add(1_000 + reader as u64));
        while !self.over.load(Ordering::Relaxed) {
            let Some(mut door) = doors.take() else { continue };
            let register = self.recent(&mut doors.random);
            if self.read(register, nodes[door.0], &mut door.1, false).is_some() {
                doors.give_back(door);
            }
            doors.rest();
        }
    }

    /// Mostly one that is being written, or has just been, else any.
    fn recent(&self, random: &mut Random) -> usize {
        let board = self.board();
        let any = random.below(board.registers.len() as u64) as usize;
        let back = random.below(50) as usize;
        let landed = board.landed.len().checked_sub(back + 1).and_then(|at| board.landed.get(at));
        let name = landed.filter(|_| random.below(4) != 0).map(|landed| &landed.flight.name);
        let number = name.and_then(|name| name.rsplit('-').next()?.parse().ok());
        number.unwrap_or(any)
    }

    /// One read, judged: whether it had an answer, and that was right. `last`: everything has ended and is healed, so
    /// that what is not there is lost.
    pub(crate) fn read(&self, register: usize, node: SocketAddr, door: &mut Door, last: bool) -> Option<bool> {
        let (name, must) = {
            let board = self.board();
            (board.registers[register].name.clone(), board.registers[register].floor())
        };
        let asked = door.ask(&request(Op::Get, name, String::new()));
        let Ok((Outcome::Answered(answer), _)) = asked else { return asked.is_ok().then_some(false) };
        let mut board = self.board();
        board.reads += 1;
        let it = &mut board.registers[register];
        let told = if answer.status == Status::NotFound { Some(0) } else { it.number(&answer.value) };
        let judged = told.map_or(Err(Wrong::Invented(0)), |told| it.read(must, told));
        let Err(wrong) = judged else { return Some(true) };
        let text = format!("{} read through {node}, {}: {wrong:?}", it.name, if last { "healed" } else { "disturbed" });
        board.found(text, last);
        Some(true)
    }

    /// Reads all registers, those nothing is written to any more included, once all is well again: how many. Called
    /// where the clients are.
    pub(crate) fn read_all(&self, nodes: &[SocketAddr], seed: u64) -> Result<usize> {
        let registers = self.board().registers.len();
        let mut doors = Doors::new(Kind::Wire, nodes, seed);
        let until = sys::monotonic_ns() + LAST_PATIENCE.as_nanos() as u64;
        for register in 0..registers {
            loop {
                if let Some(mut door) = doors.take()
                    && let Some(answered) = self.read(register, nodes[door.0], &mut door.1, true)
                {
                    doors.give_back(door);
                    if answered {
                        break;
                    }
                }
                if sys::monotonic_ns() > until {
                    return Err(Error::new(format!("{} cannot be read in the end", self.name(register))));
                }
            }
        }
        Ok(registers)
    }
}

impl Board {
    /// What a read of a register that is asked now must tell at least.
    pub(crate) fn floor(&self, register: usize) -> u64 {
        self.registers[register].floor()
    }

    /// Something that was read is wrong.
    pub(crate) fn found(&mut self, what: String, is_lost: bool) {
        *if is_lost { &mut self.lost } else { &mut self.stale } += 1;
        if self.wrongs.len() < DESCRIBED {
            println!("WRONG {what}");
            self.wrongs.push(what);
        }
    }
}

fn request(op: Op, name: String, value: String) -> Request {
    Request { op, name, arg: Arg { value, ..Arg::default() }, token: None }
}

/// One get of an object, by its name.
pub(crate) fn get(name: String) -> Request {
    request(Op::Get, name, String::new())
}

/// A client's connections, one to a node.
struct Doors<'a> {
    kind: Kind,
    nodes: &'a [SocketAddr],
    doors: Vec<Option<Door>>,
    random: Random,
}

impl<'a> Doors<'a> {
    fn new(kind: Kind, nodes: &'a [SocketAddr], seed: u64) -> Self {
        Self { kind, nodes, doors: nodes.iter().map(|_| None).collect(), random: Random::new(seed) }
    }

    /// A connection to a node that is drawn, and its number; after a rest none if there is no such.
    fn take(&mut self) -> Option<(usize, Door)> {
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let open = || Door::open_within(self.kind, self.nodes[node], PATIENCE);
        let door = self.doors[node].take().map_or_else(open, Ok);
        if door.is_err() {
            thread::sleep(AWAY);
        }
        door.ok().map(|door| (node, door))
    }

    fn give_back(&mut self, (node, door): (usize, Door)) {
        self.doors[node] = Some(door);
    }

    fn rest(&mut self) {
        thread::sleep(Duration::from_micros(self.random.below(REST_US)));
    }
}
