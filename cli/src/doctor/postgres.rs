//! Checks of PostgreSQL: version, durability, standbys, poolers, schema.

use palisade::engine::postgres::{Config, Mode, Survey, survey};

use super::finding::Finding;

/// The oldest version that the schema is written for.
const OLDEST: i32 = 130_000;

/// Examines the server of a URL.
pub(super) async fn findings(url_after_scheme: &str) -> Vec<Finding> {
    // The attempt to connect has already reported what is wrong.
    let Ok(config) = Config::parse(url_after_scheme) else { return Vec::new() };
    match survey(&config).await {
        // Advisory locks need no schema, and one that other clients installed does not matter to them.
        Ok(survey) if config.mode == Mode::Advisory => judge_server(&survey),
        Ok(survey) => [judge_server(&survey), judge_schema(&survey)].concat(),
        Err(failure) => vec![Finding::warning(
            "settings",
            format!("the server's settings cannot be read: {failure}"),
            "grant the role the right to read them, then run this again",
        )],
    }
}

fn judge_server(survey: &Survey) -> Vec<Finding> {
    let mut findings = vec![
        match survey.version_number >= OLDEST {
            true => Finding::ok("version", format!("PostgreSQL {}", survey.version)),
            false => Finding::failure(
                "version",
                format!("PostgreSQL {} is older than 13", survey.version),
                "upgrade the server".to_owned(),
            ),
        },
        match survey.is_standby {
            false => Finding::ok("primary", "the server is a primary"),
            true => Finding::failure(
                "primary",
                "the server is a standby, which can grant no locks",
                "connect to the primary".to_owned(),
            ),
        },
        match survey.fsync {
            true => Finding::ok("fsync", "every commit is flushed to disk"),
            false => Finding::failure(
                "fsync",
                "fsync is off: a crash of the host loses grants and tokens",
                "set fsync = on in postgresql.conf".to_owned(),
            ),
        },
        match survey.full_page_writes {
            true => Finding::ok("pages", "full_page_writes is on: a page torn by a power cut is repaired"),
            false => Finding::warning(
                "pages",
                "full_page_writes is off: a page torn by a power cut can destroy the tables",
                "set full_page_writes = on, unless the file system writes whole pages",
            ),
        },
    ];
    findings.push(match survey.synchronous_commit.as_str() {
        "off" => Finding::warning(
            "commit",
            "synchronous_commit is off: Palisade switches it on for its grants and keep-alives, but a crash may lose your \
             own transactions under a lock",
            "set synchronous_commit = on",
        ),
        "local" if !survey.synchronous_standbys.is_empty() => Finding::warning(
            "commit",
            "synchronous_commit is local: a commit does not wait for the standbys, so a promoted one can lose tokens",
            "set synchronous_commit = on",
        ),
        other => Finding::ok("commit", format!("synchronous_commit is {other}")),
    });
    if survey.standbys.is_some_and(|standbys| standbys > 0) && survey.synchronous_standbys.is_empty() {
        findings.push(Finding::warning(
            "standbys",
            "the server has standbys, and no commit waits for them: one that is promoted can lose tokens",
            "set synchronous_standby_names, or after a promotion SELECT palisade.raise_tokens(N), with N above every token that a client or a resource has seen",
        ));
    }
    findings.push(match survey.is_pooled {
        false => Finding::ok("pooler", "no pooler in transaction mode"),
        true => Finding::warning(
            "pooler",
            "the connection goes through a pooler in transaction mode: waiters poll, and locks cannot be watched",
            "connect to PostgreSQL itself, or use the pooler in session mode",
        ),
    });
    findings
}

fn judge_schema(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    // `palisade.check()` also reports that the tables were restored from a copy. Connecting has reported it, with advice.
    let is_copy = |contradiction: &&String| contradiction.starts_with("these locks are a copy");
    let contradictions: Vec<_> = survey.contradictions.iter().filter(|found| !is_copy(found)).cloned().collect();
    if !contradictions.is_empty() {
        findings.push(Finding::failure(
            "contradictions",
            format!("the tables in the schema palisade contradict each other: {}", contradictions.join("; ")),
            "stop the clients that use these locks, and report it with the output of SELECT palisade.check()"
                .to_owned(),
        ));
    }
    findings.push(match (survey.schema, survey.may_install) {
        (Some(version), _) => Finding::ok("schema", format!("palisade, version {version}, for role {}", survey.role)),
        (None, true) => Finding::ok("schema", format!("not installed yet; role {} may do it", survey.role)),
        (None, false) => Finding::failure(
            "schema",
            format!("not installed, and role {} may not do it", survey.role),
            "have it installed: palisade engine postgres schema | psql".to_owned(),
        ),
    });
    findings
}
