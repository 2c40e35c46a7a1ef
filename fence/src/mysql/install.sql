-- Palisade's fence for MySQL 8 and MariaDB 10.6 or newer. Run it in the database that holds the data, so that marks are
-- backed up and restored with them. It can be run again: what is there already stays, also if it is of an older version
-- (`palisade fence mysql --upgrade` replaces that).

CREATE TABLE IF NOT EXISTS palisade_fence_marks (
  resource VARBINARY(255)  NOT NULL PRIMARY KEY COMMENT 'what is protected',
  token    BIGINT UNSIGNED NOT NULL COMMENT 'the newest token that has sealed it: nothing older is accepted',
  seq      BIGINT UNSIGNED NOT NULL COMMENT 'the last numbered write under that token',
  author   BIGINT UNSIGNED NOT NULL COMMENT 'who gave it that number',
  outcome  VARBINARY(255)  NULL     COMMENT 'what came of it; NULL if nothing was, and ever will be, written'
) ENGINE = InnoDB;

DELIMITER //

-- CALL palisade_fence_seal('orders', 34): before anything is read under token 34. It is then this connection's token.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_seal(IN of_resource VARBINARY(255), IN with_token VARCHAR(40))
MODIFIES SQL DATA COMMENT 'palisade 1'
BEGIN
  DECLARE mine, seen BIGINT UNSIGNED;
  DECLARE said VARCHAR(128);
  IF of_resource IS NULL OR of_resource = '' THEN
    SIGNAL SQLSTATE '45F05' SET MESSAGE_TEXT = 'what is to be sealed has no name';
  END IF;
  IF with_token IS NULL OR with_token NOT REGEXP '^[0-9]{1,16}$' OR with_token + 0 NOT BETWEEN 1 AND 9007199254740991 THEN
    SIGNAL SQLSTATE '45F05' SET MESSAGE_TEXT = 'a token is a whole number from 1 to 2^53 - 1';
  END IF;
  SET mine = with_token;
  INSERT INTO palisade_fence_marks VALUES (of_resource, mine, 0, 0, NULL)
    ON DUPLICATE KEY UPDATE
      seq = IF(mine > token, 0, seq), author = IF(mine > token, 0, author),
      outcome = IF(mine > token, NULL, outcome), token = GREATEST(token, mine);
  SELECT token INTO seen FROM palisade_fence_marks WHERE resource = of_resource LOCK IN SHARE MODE;
  IF seen > mine THEN
    SET said = CONCAT('token ', seen, ' has sealed ', LEFT(of_resource, 40), ': the lock is somebody else''s by now');
    SIGNAL SQLSTATE '45F04' SET MESSAGE_TEXT = said;
  END IF;
  SET @palisade_token = mine;
END //

-- CALL palisade_fence_check('orders'): refuses, unless @palisade_token is the token of the mark. Until the transaction ends
-- nobody can raise the mark. The triggers call it; whoever reads calls it first, in the same transaction.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_check(IN of_resource VARBINARY(255))
READS SQL DATA COMMENT 'palisade 1'
BEGIN
  DECLARE seen BIGINT UNSIGNED DEFAULT NULL;
  DECLARE said VARCHAR(128);
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET seen = NULL;
  SELECT token INTO seen FROM palisade_fence_marks WHERE resource = of_resource LOCK IN SHARE MODE;
  IF @palisade_token IS NULL THEN
    SET said = CONCAT(LEFT(of_resource, 40), ' is fenced: CALL palisade_fence_seal, or SET @palisade_token, first');
    SIGNAL SQLSTATE '45F02' SET MESSAGE_TEXT = said;
  ELSEIF seen IS NULL OR seen < @palisade_token THEN
    SET said = CONCAT('token ', LEFT(@palisade_token, 20), ' has not sealed ', LEFT(of_resource, 40), ': seal it first');
    SIGNAL SQLSTATE '45F03' SET MESSAGE_TEXT = said;
  ELSEIF seen > @palisade_token THEN
    SET said = CONCAT('token ', seen, ' has sealed ', LEFT(of_resource, 40), ': the lock is somebody else''s by now');
    SIGNAL SQLSTATE '45F01' SET MESSAGE_TEXT = said;
  END IF;
END //

-- CALL palisade_fence_number('orders', 7): in the transaction of the 7th write under this token, before it writes. The
-- same write is then never applied twice, however often the transaction is sent.
CREATE PROCEDURE IF NOT EXISTS palisade_fence_number(IN of_resource VARBINARY(255), IN with_seq BIGINT UNSIGNED)
MODIFIES SQL DATA COMMENT 'palisade 1'
BEGIN
  DECLARE last BIGINT UNSIGNED DEFAULT NULL;
  DECLARE said VARCHAR(128);
  SELECT seq INTO last FROM palisade_fence_marks WHERE resource = of_resource FOR UPDATE;
  CALL palisade_fence_check(of_resource);
  IF with_seq = last AND last > 0 THEN
    SET said = CONCAT('write ', with_seq, ' of ', LEFT(of_resource, 40), ' was done before');
    SIGNAL SQLSTATE '45F06' SET MESSAGE_TEXT = said;
  ELSEIF with_seq IS NULL OR with_seq <> last + 1 THEN
    SET said = CONCAT('the next write of ', LEFT(of_resource, 40), ' is number ', last + 1);
    SIGNAL SQLSTATE '45F07' SET MESSAGE_TEXT = said;
  END IF;
  UPDATE palisade_fence_marks SET seq = with_seq, author = 0, outcome = '' WHERE resource = of_resource;
END //

DELIMITER ;
