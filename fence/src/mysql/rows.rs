//! The rows that one mark protects.

use std::fmt;
use std::sync::Arc;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Params, Row};

use super::answer::Failure;
use super::connections::{self, Connections};
use super::script::hex;
use super::statement::{Statement, Written};
use crate::name::check_name;
use crate::{Author, Error, ErrorKind, FenceState, Mark, Pass, Resource, Sealed, Seq, Token, Verdict};

const LONGEST_NAME: usize = 255;
/// A client that is paused in its transaction blocks all seals. MariaDB can end such a transaction; for MySQL this is a
/// comment.
const CUT_OFF: &str = " /*M!100300 , SESSION idle_transaction_timeout = 10 */";

/// Rows that one mark protects, in the table `palisade_fence_marks`. All clones are the same rows.
#[derive(Clone)]
pub struct Rows {
    connections: Connections,
    name: Arc<str>,
}

impl Rows {
    pub(super) fn new(connections: Connections, name: &str) -> Result<Rows, Error> {
        let rows = Rows { connections, name: name.into() };
        match check_name(name, LONGEST_NAME) {
            Ok(()) => Ok(rows),
            Err(what) => Err(rows.error(ErrorKind::misuse(what), "use")),
        }
    }

    /// Reads the mark; `None` if the rows were never sealed.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub async fn mark(&self) -> Result<Option<Mark>, Error> {
        let stored = self.connections.run(&self.select("")).await;
        let stored = stored.map_err(|failure| self.error(failure.kind(), "read the mark of"))?;
        self.state(&stored, "read the mark of").map(|state| state.mark())
    }

    /// Returns the query for the stored mark.
    fn select(&self, locked: &str) -> String {
        format!(
            "SELECT token, seq, author, outcome FROM palisade_fence_marks WHERE resource = x'{}' {locked}",
            self.key()
        )
    }

    /// Returns the name in hexadecimal.
    fn key(&self) -> String {
        hex(self.name.as_bytes())
    }

    fn state(&self, rows: &[Row], operation: &'static str) -> Result<FenceState<Vec<u8>>, Error> {
        let Some(row) = rows.first() else { return Ok(FenceState::default()) };
        let number = |column: usize| row.get_opt::<u64, _>(column)?.ok();
        let outcome = row.get_opt::<Option<Vec<u8>>, _>(3).and_then(Result::ok);
        let (Some(token), Some(seq), Some(author)) = (
            number(0).and_then(|token| Token::new(token).ok()),
            number(1).and_then(|seq| Seq::new(seq).ok()),
            number(2).and_then(|author| Author::new(author).ok()),
        ) else {
            let what = "its row in palisade_fence_marks is invalid: another program has changed it; restore the row";
            return Err(self.error(ErrorKind::misuse(what), operation));
        };
        Ok(FenceState::of(Mark { token, seq }, author, outcome.flatten()))
    }

    /// Begins a transaction in which the mark cannot change.
    async fn begin(&self, conn: &mut Conn, pass: &Pass, how: Access) -> Result<FenceState<Vec<u8>>, Error> {
        let (begin, lock) = match how {
            Access::Read => ("START TRANSACTION READ ONLY", "LOCK IN SHARE MODE"),
            Access::Write => ("START TRANSACTION", "FOR UPDATE"),
        };
        let begin = format!("SET @palisade_fence_token = {}{CUT_OFF}; {begin}; {}", pass.token, self.select(lock));
        let failed = |cause| self.error(Failure::Undone(cause).kind(), how.verb()).under(pass.token);
        let stored = connections::run(conn, &begin).await.map_err(failed)?;
        self.state(&stored, how.verb()).map_err(|error| error.under(pass.token))
    }

    /// Writes, records and commits.
    async fn apply(
        &self,
        conn: &mut Conn,
        pass: &Pass,
        change: Option<&[Statement]>,
    ) -> Result<Option<Written>, Failure> {
        let mut written = Written::default();
        for statement in change.unwrap_or_default() {
            let ran = execute(conn, statement).await.map_err(Failure::Undone)?;
            written.affected_rows += ran.affected_rows;
            written.last_insert_id = ran.last_insert_id.or(written.last_insert_id);
        }
        let outcome = change.map(|_| written);
        let stored = outcome.map_or("NULL".to_owned(), |written| format!("x'{}'", hex(written.encode().as_bytes())));
        let record = format!(
            "UPDATE palisade_fence_marks SET seq = {}, author = {}, outcome = {stored} WHERE resource = x'{}'; COMMIT",
            pass.seq,
            pass.author,
            self.key()
        );
        connections::run(conn, &record).await.map_err(Failure::Open)?;
        Ok(outcome)
    }

    fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, self.name(), operation)
    }
}

#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

impl Access {
    fn verb(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
        }
    }
}

/// Rolls back a transaction, so that other clients can seal at once. If this fails, the pool does it.
async fn end(conn: &mut Conn) {
    let _ = connections::run(conn, "ROLLBACK").await;
}

async fn execute(conn: &mut Conn, statement: &Statement) -> Result<Written, mysql_async::Error> {
    connections::within(async {
        let values = Params::Positional(statement.values.clone());
        let result = conn.exec_iter(statement.sql.as_str(), values).await?;
        let written = Written { affected_rows: result.affected_rows(), last_insert_id: result.last_insert_id() };
        result.drop_result().await?;
        Ok(Written { last_insert_id: written.last_insert_id.filter(|id| *id > 0), ..written })
    })
    .await
}

impl Resource for Rows {
    type Query = Statement;
    type Answer = Vec<Row>;
    type Change = Vec<Statement>;
    type Outcome = Written;

    fn name(&self) -> String {
        format!("mysql {} in {}", self.name, self.connections.address())
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        let error = |kind| self.error(kind, "seal").under(token);
        let seal = format!(
            "START TRANSACTION; INSERT INTO palisade_fence_marks VALUES (x'{}', {token}, 0, 0, NULL) ON DUPLICATE KEY UPDATE \
             seq = IF({token} > token, 0, seq), author = IF({token} > token, 0, author), \
             outcome = IF({token} > token, NULL, outcome), token = GREATEST(token, {token}); {}; COMMIT",
            self.key(),
            self.select("FOR UPDATE")
        );
        let stored = self.connections.run(&seal).await.map_err(|failure| error(failure.kind()))?;
        match self.state(&stored, "seal")?.mark() {
            Some(mark) if mark.token > token => Err(error(ErrorKind::Superseded { seen: mark.token })),
            Some(mark) => Ok(mark),
            None => Err(error(ErrorKind::NotSealed)),
        }
    }

    async fn read(&self, pass: &Pass, query: Statement) -> Result<Vec<Row>, Error> {
        let error = |failure: Failure| self.error(failure.kind(), "read").under(pass.token);
        let mut conn = self.connections.connection().await.map_err(error)?;
        let state = self.begin(&mut conn, pass, Access::Read).await?;
        if let Err(verdict) = state.admit_read(pass.token)
            && let Some(kind) = ErrorKind::refused(&verdict)
        {
            end(&mut conn).await;
            return Err(self.error(kind, "read").under(pass.token));
        }
        let values = Params::Positional(query.values);
        let rows = connections::within(conn.exec(query.sql.as_str(), values)).await;
        end(&mut conn).await;
        rows.map_err(|cause| error(Failure::Undone(cause)))
    }

    async fn write(&self, pass: &Pass, change: Option<Vec<Statement>>) -> Result<Option<Written>, Error> {
        let error = |kind| self.error(kind, "write").under(pass.token);
        for statement in change.iter().flatten() {
            statement.check().map_err(error)?;
        }
        let mut conn = self.connections.connection().await.map_err(|failure| error(failure.kind()))?;
        let verdict = self.begin(&mut conn, pass, Access::Write).await?.admit(pass.stamp());
        let written = match (ErrorKind::refused(&verdict), verdict) {
            (Some(kind), _) => Err(error(kind)),
            (None, Verdict::Duplicate(stored)) => Ok(stored.as_deref().and_then(Written::decode)),
            _ => match self.apply(&mut conn, pass, change.as_deref()).await {
                Ok(outcome) => return Ok(outcome),
                Err(failure) => Err(error(failure.kind())),
            },
        };
        end(&mut conn).await;
        written
    }
}

crate::sealable!(Rows);

impl Sealed<Rows> {
    /// Runs a SELECT and returns its rows.
    ///
    /// # Errors
    ///
    /// As [`read`](Sealed::read).
    pub async fn query(&self, statement: Statement) -> Result<Vec<Row>, Error> {
        self.read(statement).await
    }

    /// Runs one statement. [`write`](Sealed::write) runs several in one transaction.
    ///
    /// # Errors
    ///
    /// As [`write`](Sealed::write).
    pub async fn execute(&mut self, statement: Statement) -> Result<Written, Error> {
        self.write(vec![statement]).await
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rows").field(&self.name()).finish()
    }
}
