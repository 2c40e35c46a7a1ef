-- Palisade's fence for MySQL 8 and MariaDB 10.6 or newer. Run it in the database that holds the data, so that marks are
-- backed up and restored with them. It can be run again: what is there already stays, also if it is of an older version
-- (`palisade fence mysql --upgrade` replaces that).

-- Procedures and triggers keep the sql_mode under which they were made, whatever their callers have set.
SET @palisade_fence_sql_mode = @@SESSION.sql_mode, SESSION sql_mode = 'STRICT_ALL_TABLES';

CREATE TABLE IF NOT EXISTS palisade_fence_marks (
  resource VARBINARY(255)  NOT NULL PRIMARY KEY COMMENT 'what is protected, in UTF-8',
  token    BIGINT UNSIGNED NOT NULL COMMENT 'the newest token that has sealed it: nothing older is accepted',
  seq      BIGINT UNSIGNED NOT NULL COMMENT 'the last numbered write under that token',
  author   BIGINT UNSIGNED NOT NULL COMMENT 'the handle that gave it that number',
  outcome  VARBINARY(255)  NULL     COMMENT 'what came of it; NULL if nothing was, and ever will be, written'
) ENGINE = InnoDB;

-- The tables that were given triggers, so that palisade_fence_problems finds one that has lost them.
CREATE TABLE IF NOT EXISTS palisade_fence_tables (
  name     VARBINARY(255) NOT NULL PRIMARY KEY,
  resource VARBINARY(255) NOT NULL COMMENT 'its mark; for row marks, the part before the slash',
  row_key  VARBINARY(255) NULL     COMMENT 'the column that comes after the slash'
) ENGINE = InnoDB;

-- Problems with the protection of tables. Those that prevent it are refused when triggers are created.
CREATE OR REPLACE VIEW palisade_fence_problem AS
  SELECT CONVERT(p.name USING utf8mb4) AS name, CONVERT(p.resource USING utf8mb4) AS resource, x.prevents, x.problem, x.remedy
  FROM palisade_fence_tables p JOIN (
    SELECT p.name, 1 AS prevents, 'there is no such table: it was renamed or dropped' AS problem,
        'protect it by its new name, if it has one; then DELETE its row of palisade_fence_tables' AS remedy
      FROM palisade_fence_tables p WHERE NOT EXISTS (SELECT 1 FROM information_schema.tables t
        WHERE t.table_schema = DATABASE() AND BINARY t.table_name = p.name AND t.table_type = 'BASE TABLE')
    UNION ALL
    SELECT p.name, 1, CONCAT('its engine is ', t.engine, ', which takes no part in transactions'), 'ALTER TABLE … ENGINE = InnoDB'
      FROM palisade_fence_tables p JOIN information_schema.tables t
        ON t.table_schema = DATABASE() AND BINARY t.table_name = p.name AND t.table_type = 'BASE TABLE'
      WHERE t.engine <> 'InnoDB'
    UNION ALL
    SELECT p.name, 1, CONCAT('no trigger sees what its foreign key ', r.constraint_name, ' does ON DELETE ', r.delete_rule,
        ' ON UPDATE ', r.update_rule), 'make it ON DELETE RESTRICT ON UPDATE RESTRICT'
      FROM palisade_fence_tables p JOIN information_schema.referential_constraints r
        ON r.constraint_schema = DATABASE() AND BINARY r.table_name = p.name
      WHERE r.delete_rule NOT IN ('RESTRICT', 'NO ACTION') OR r.update_rule NOT IN ('RESTRICT', 'NO ACTION')
    UNION ALL
    -- Columns whose text depends on the session (TIMESTAMP, FLOAT), is no text (BINARY), or is not known yet in a trigger.
    SELECT p.name, 1, CONCAT('its column ', CONVERT(p.row_key USING utf8mb4), ' cannot name rows: it is ',
        IF(c.generation_expression <> '', 'generated', COALESCE(c.column_type, 'not there'))),
        'take a column of integers, DECIMAL, text, DATE, DATETIME or UUID, not generated and not ZEROFILL'
      FROM palisade_fence_tables p JOIN information_schema.tables t
        ON t.table_schema = DATABASE() AND BINARY t.table_name = p.name AND t.table_type = 'BASE TABLE'
      LEFT JOIN information_schema.columns c ON c.table_schema = DATABASE() AND BINARY c.table_name = p.name AND c.column_name = CONVERT(p.row_key USING utf8mb4)
      WHERE p.row_key IS NOT NULL AND (c.data_type IS NULL OR c.column_type LIKE '%zerofill%' OR c.generation_expression <> ''
        OR c.data_type NOT IN ('tinyint', 'smallint', 'mediumint', 'int', 'bigint', 'decimal', 'char', 'varchar', 'tinytext',
          'text', 'mediumtext', 'longtext', 'enum', 'set', 'date', 'datetime', 'time', 'year', 'uuid', 'inet4', 'inet6'))
    UNION ALL
    SELECT p.name, 0, CONCAT('it has triggers of the fence for ', COUNT(DISTINCT g.event_manipulation),
        ' of INSERT, UPDATE and DELETE: it was created again, or they were dropped'), 'protect it again'
      FROM palisade_fence_tables p JOIN information_schema.tables t
        ON t.table_schema = DATABASE() AND BINARY t.table_name = p.name AND t.table_type = 'BASE TABLE'
      LEFT JOIN information_schema.triggers g ON g.event_object_schema = DATABASE() AND BINARY g.event_object_table = p.name
        AND g.action_timing = 'BEFORE' AND LOCATE('CALL palisade_fence_check(', g.action_statement) > 0
      GROUP BY p.name HAVING COUNT(DISTINCT g.event_manipulation) < 3
    UNION ALL
    SELECT p.name, 0, CONCAT('trigger ', g.trigger_name, ' runs after those of the fence and can change a row''s key behind them'),
        'drop it, and create it again with PRECEDES'
      FROM palisade_fence_tables p JOIN information_schema.triggers g
        ON g.event_object_schema = DATABASE() AND BINARY g.event_object_table = p.name
      WHERE p.row_key IS NOT NULL AND g.action_timing = 'BEFORE' AND g.event_manipulation <> 'DELETE'
        AND LOCATE('CALL palisade_fence_check(', g.action_statement) = 0
        AND g.action_order > (SELECT MAX(o.action_order) FROM information_schema.triggers o
          WHERE o.event_object_schema = DATABASE() AND BINARY o.event_object_table = p.name AND o.action_timing = 'BEFORE'
            AND o.event_manipulation = g.event_manipulation AND LOCATE('CALL palisade_fence_check(', o.action_statement) > 0)
    UNION ALL
    SELECT p.name, 0, CONCAT(d.grantee, ' may DROP it, and so TRUNCATE it, which no trigger sees'), 'REVOKE DROP from that user'
      FROM palisade_fence_tables p JOIN (
        SELECT s.grantee, NULL AS name FROM information_schema.schema_privileges s
          WHERE s.privilege_type = 'DROP' AND DATABASE() LIKE s.table_schema
        UNION SELECT s.grantee, BINARY s.table_name FROM information_schema.table_privileges s
          WHERE s.privilege_type = 'DROP' AND s.table_schema = DATABASE()) d ON d.name IS NULL OR d.name = p.name
  ) x ON x.name = p.name;

DELIMITER //

-- Refuses an invalid name of a resource. The parameter converts it to UTF-8 from the client's character set.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_name(IN of_resource VARCHAR(255) CHARACTER SET utf8mb4)
NO SQL COMMENT 'palisade 3'
BEGIN
  IF of_resource IS NULL THEN
    SIGNAL SQLSTATE '45F05' SET MESSAGE_TEXT = 'NULL names no mark: a row whose key is NULL cannot be fenced, give it a key';
  ELSEIF LENGTH(of_resource) NOT BETWEEN 1 AND 255 OR of_resource REGEXP '[[:cntrl:]]' THEN
    SIGNAL SQLSTATE '45F05' SET MESSAGE_TEXT = 'a resource''s name has 1 to 255 bytes, and no control characters';
  END IF;
END //

-- The text for a token below the mark: both causes, and what to do. MySQL takes 128 characters, so the name is cut to the rest.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_overtaken(IN of_resource VARCHAR(255) CHARACTER SET utf8mb4, IN seen BIGINT UNSIGNED,
  OUT message VARCHAR(128) CHARACTER SET utf8mb4)
NO SQL COMMENT 'palisade 3'
BEGIN
  SET message = CONCAT(': stale holder, or engine behind: palisade tokens raise --above ', seen, ' --url ENGINE'),
    message = CONCAT('token ', seen, ' has sealed ', LEFT(of_resource, GREATEST(110 - CHAR_LENGTH(message) - CHAR_LENGTH(seen), 0)), message);
END //

-- CALL palisade_fence_seal('orders', 34): before anything is read under token 34. It is then this connection's token.
-- A separate transaction: the seal is durable when it returns, and later reads are not older than it.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_seal(IN of_resource VARCHAR(255) CHARACTER SET utf8mb4, IN with_token VARCHAR(40))
MODIFIES SQL DATA COMMENT 'palisade 3'
BEGIN
  DECLARE mine, seen BIGINT UNSIGNED;
  DECLARE named VARBINARY(255);
  DECLARE message VARCHAR(128) CHARACTER SET utf8mb4;
  -- The caller's transaction is left as it is.
  DECLARE EXIT HANDLER FOR 1568
    SIGNAL SQLSTATE '45F08' SET MESSAGE_TEXT = 'a transaction is open: COMMIT it, or ROLLBACK, then seal, then begin again';
  CALL palisade_fence_name(of_resource);
  IF with_token IS NULL OR with_token NOT REGEXP '^[0-9]{1,16}$' OR with_token + 0 NOT BETWEEN 1 AND 9007199254740991 THEN
    SIGNAL SQLSTATE '45F05' SET MESSAGE_TEXT = 'a token is a whole number from 1 to 2^53 - 1';
  END IF;
  -- Within a transaction this is error 1568.
  SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
  SET mine = with_token, named = of_resource;
  INSERT INTO palisade_fence_marks VALUES (named, mine, 0, 0, NULL)
    ON DUPLICATE KEY UPDATE
      seq = IF(mine > token, 0, seq), author = IF(mine > token, 0, author),
      outcome = IF(mine > token, NULL, outcome), token = GREATEST(token, mine);
  SELECT token INTO seen FROM palisade_fence_marks WHERE resource = named LOCK IN SHARE MODE;
  -- For clients with autocommit off. The transaction has no statement of the caller.
  COMMIT;
  IF seen > mine THEN
    CALL palisade_fence_overtaken(of_resource, seen, message);
    SIGNAL SQLSTATE '45F04' SET MESSAGE_TEXT = message;
  END IF;
  SET @palisade_fence_token = mine;
END //

-- CALL palisade_fence_check('orders'): refuses, unless @palisade_fence_token is the token of the mark. Until the transaction
-- ends no seal can raise the mark. The triggers call it; a transaction that reads calls it first. It locks the mark exclusively:
-- XA PREPARE drops shared locks, and a seal would then return before XA COMMIT brings a write under the older token.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_check(IN of_resource VARCHAR(255) CHARACTER SET utf8mb4)
READS SQL DATA COMMENT 'palisade 3'
BEGIN
  DECLARE mine, seen, seen_before BIGINT UNSIGNED DEFAULT NULL;
  DECLARE shown VARCHAR(40) CHARACTER SET utf8mb4 DEFAULT LEFT(CAST(@palisade_fence_token AS CHAR), 40);
  DECLARE named VARBINARY(255);
  DECLARE message VARCHAR(128) CHARACTER SET utf8mb4;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  CALL palisade_fence_name(of_resource);
  IF shown IS NULL THEN
    SET message = CONCAT(LEFT(of_resource, 40), ' is fenced: CALL palisade_fence_seal, or SET @palisade_fence_token, first');
    SIGNAL SQLSTATE '45F02' SET MESSAGE_TEXT = message;
  ELSEIF shown NOT REGEXP '^[0-9]{1,16}$' THEN
    SIGNAL SQLSTATE '45F05' SET MESSAGE_TEXT = '@palisade_fence_token is not a whole number from 1 to 2^53 - 1';
  END IF;
  SET mine = shown, named = of_resource;
  SELECT token INTO seen FROM palisade_fence_marks WHERE resource = named FOR UPDATE;
  IF seen IS NULL OR seen < mine THEN
    SET message = CONCAT('token ', mine, ' has not sealed ', LEFT(of_resource, 40), ': seal it first');
    SIGNAL SQLSTATE '45F03' SET MESSAGE_TEXT = message;
  ELSEIF seen > mine THEN
    CALL palisade_fence_overtaken(of_resource, seen, message);
    SIGNAL SQLSTATE '45F01' SET MESSAGE_TEXT = message;
  END IF;
  -- In REPEATABLE READ this sees what the transaction sees. (In a trigger it is a locking read too, and sees no difference.)
  SELECT token INTO seen_before FROM palisade_fence_marks WHERE resource = named;
  IF NOT seen_before <=> seen THEN
    SIGNAL SQLSTATE '45F08' SET MESSAGE_TEXT = 'this transaction began before the seal, and reads what is older: ROLLBACK, then begin again';
  END IF;
END //

-- CALL palisade_fence_number('orders', 7): in the transaction of the 7th write under this token, before it writes. The
-- same write is then never applied twice, however often the transaction is sent.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_number(IN of_resource VARCHAR(255) CHARACTER SET utf8mb4, IN with_seq BIGINT UNSIGNED)
MODIFIES SQL DATA COMMENT 'palisade 3'
BEGIN
  DECLARE last BIGINT UNSIGNED DEFAULT NULL;
  DECLARE named VARBINARY(255);
  DECLARE message VARCHAR(128) CHARACTER SET utf8mb4;
  CALL palisade_fence_name(of_resource);
  SET named = of_resource;
  SELECT seq INTO last FROM palisade_fence_marks WHERE resource = named FOR UPDATE;
  CALL palisade_fence_check(of_resource);
  IF with_seq = last AND last > 0 THEN
    SET message = CONCAT('write ', with_seq, ' of ', LEFT(of_resource, 40), ' was done before');
    SIGNAL SQLSTATE '45F06' SET MESSAGE_TEXT = message;
  ELSEIF with_seq IS NULL OR with_seq <> last + 1 THEN
    SET message = CONCAT('the next write of ', LEFT(of_resource, 40), ' is number ', last + 1);
    SIGNAL SQLSTATE '45F07' SET MESSAGE_TEXT = message;
  END IF;
  UPDATE palisade_fence_marks SET seq = with_seq, author = 0, outcome = '' WHERE resource = named;
END //

-- CALL palisade_fence_problems(): the problems with the protection of tables, a row each: where, what, and what to do.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_problems()
READS SQL DATA COMMENT 'palisade 3'
SELECT name, resource, problem, remedy FROM palisade_fence_problem ORDER BY name, problem //

-- Records a table before its triggers are created, unless they could not protect it.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_protecting(IN of_table VARCHAR(64) CHARACTER SET utf8mb4,
  IN of_resource VARCHAR(255) CHARACTER SET utf8mb4, IN of_column VARCHAR(64) CHARACTER SET utf8mb4, IN is_again BOOLEAN)
MODIFIES SQL DATA COMMENT 'palisade 3'
BEGIN
  DECLARE named, old_resource, old_column VARBINARY(255);
  DECLARE message VARCHAR(300) CHARACTER SET utf8mb4;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  CALL palisade_fence_name(of_resource);
  SET named = of_table;
  SELECT LEFT(CONCAT(of_table, ' has triggers of the fence already: drop them, or use --install, which replaces them'), 128) INTO message
    FROM information_schema.triggers g WHERE NOT is_again AND g.event_object_schema = DATABASE()
      AND BINARY g.event_object_table = named AND LOCATE('CALL palisade_fence_check(', g.action_statement) > 0 LIMIT 1;
  IF message IS NULL THEN
    SELECT resource, row_key INTO old_resource, old_column FROM palisade_fence_tables WHERE name = named;
    REPLACE INTO palisade_fence_tables VALUES (named, of_resource, of_column);
    SELECT LEFT(CONCAT(of_table, ': ', MIN(x.problem)), 128) INTO message FROM palisade_fence_problem x WHERE x.name = of_table AND x.prevents;
    IF message IS NOT NULL THEN
      DELETE FROM palisade_fence_tables WHERE name = named;
      INSERT INTO palisade_fence_tables SELECT named, old_resource, old_column FROM DUAL WHERE old_resource IS NOT NULL;
    END IF;
  END IF;
  IF message IS NOT NULL THEN
    SIGNAL SQLSTATE '45F09' SET MESSAGE_TEXT = message;
  END IF;
END //

DELIMITER ;

SET SESSION sql_mode = @palisade_fence_sql_mode;
