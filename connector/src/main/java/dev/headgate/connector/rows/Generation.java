package dev.headgate.connector.rows;

import java.io.Serializable;
import java.util.Map;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.execution.joins.LongHashedRelation;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The filters of one generation, as a task needs them.
 *
 * @param number of the generation
 * @param base rows by key, which generations share: on a cluster they go to an executor once
 * @param changed the rows of keys that have changed since the base was made, instead of those in there
 * @param brokers what is read of each broker's events
 */
record Generation(
    long number,
    Broadcast<LongHashedRelation> base,
    ChangedRows changed,
    Map<UTF8String, BrokerSpec> brokers)
    implements Serializable {}
