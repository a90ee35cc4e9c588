"""Every limit of Headgate: a name that ends in its unit, a value, and the reason for it.

One module, so that a limit has one name and one way to it: `limits.NAME`. The sections are the rooms.
"""

from __future__ import annotations

from typing import Final

# --- event ----------------------------------------------------------------------------------------
EVENT_BYTES_MAX: Final = 1 << 20
"""One event's body. CloudEvents asks intermediaries for at least 64 KiB; 1 MiB is what Knative users set."""
JSON_DEPTH_MAX: Final = 1_000
"""Nesting of JSON data: cel-cpp's and Jackson's own limits lie just above."""
JSON_CONTAINERS_MAX: Final = 100_000
"""Arrays and objects of one event's JSON: each takes as long as 20 bytes of text, and all are decoded in one go."""
DECODE_BYTES_INLINE: Final = 128 << 10
"""A request's body up to which it is decoded in the event loop; a larger one in a thread, event by event."""
DECODE_CONTAINERS_INLINE: Final = 10_000
"""The same of its arrays and objects: some 4 ms."""
DECODE_EVENTS_INLINE: Final = 50
"""The same of the events of a gRPC message that has RPC_BYTES_UNCOUNTED at most: some 4 ms."""
DECODE_WAITING_BYTES_MAX: Final = 64 << 20
"""Bodies that wait for that thread, together; namespaces and users share it."""
JSON_NUMBER_CHARS_MAX: Final = 1_000
"""One number in JSON: Jackson, with which Spark reads the data, takes no longer one."""
JSON_NAME_CHARS_MAX: Final = 50_000
"""One member's name in JSON, in UTF-16 units: Jackson takes no longer one."""
BATCH_BYTES_MAX: Final = 4 << 20
"""The body of a batch; one that takes long to decode is decoded beside the event loop."""
BATCH_EVENTS_MAX: Final = 10_000
"""Events in one batch: they become one chunk of the log."""
HEADER_ATTRIBUTES_BYTES_MAX: Final = 128 << 10
"""Names and values of all ce- headers of a request; CloudEvents asks for at least 64 KiB an event."""
ATTRIBUTE_NAME_CHARS_MAX: Final = 128
"""One attribute name. CloudEvents recommends 20; a bound keeps caches of names small."""
EXTENSION_DEPTH_MAX: Final = 8
"""Maps within one another in an extension of CloudEvents 0.3: each a step of a path and a level of recursion."""
EXTENSION_MEMBERS_MAX: Final = 256
"""Members of all maps of one event's extensions: each is one more attribute for filters."""
VALUE_CACHED_CHARS_MAX: Final = 256
"""Sources, schemas and media types up to this length are checked once and remembered."""
VALUES_CACHED_MAX: Final = 4_096
"""Remembered values of one kind: with their longest length this is about 1 MiB."""
FAST_PATH_EXTENSIONS_MAX: Final = 16
"""Extensions, by name, that the fast path of batches knows: each is checked for every event of a batch."""

# --- shares ---------------------------------------------------------------------------------------
SHARE_OF_FREE_PLACES: Final = 3
"""A namespace, or a user, may have so many times as many places as are free, of what all share (watches, readers,
streams, bytes of bodies and more): alone three quarters of all, beside one other that has its share three sevenths
each."""

# --- rpc ------------------------------------------------------------------------------------------
RPC_REQUEST_BYTES_MAX: Final = BATCH_BYTES_MAX + (256 << 10)
"""One message of a client: a batch as over HTTP, and what gRPC puts around it."""
RPC_QUESTION_BYTES_MAX: Final = 1 << 20
"""One message of a reader or a consumer: filters, and acknowledgements of SUBSCRIPTION_UNACKED_MAX events."""
RPC_META_BYTES_MAX: Final = 16 << 10
"""One message to the services about the server itself, health and reflection: a name."""
RPC_FIELDS_MAX: Final = 10_000
"""Fields of one message, or of one event of a request to publish, with those of the messages in it: it is read in one
go, a field in some 2 us."""
RPC_BYTES_UNCOUNTED: Final = 16 << 10
"""Bytes of a message up to which its fields are not counted: there cannot be so many."""
RPC_METADATA_BYTES_MAX: Final = 16 << 10
"""Headers of one call: Headgate's clients send none beside its name."""
RPC_RESPONSE_BYTES: Final = 1 << 20
"""Events go into one message until it is this large: with one more event it stays below the 4 MiB that clients take."""
RPC_CONNECTIONS_MAX: Final = 1_024
"""Connections of gRPC clients at the same time; each is a file, and carries many calls."""
RPC_IDLE_S_MAX: Final = 60.0
"""A connection of a gRPC client without a call for so long is closed; clients open the next one by themselves."""
RPC_STREAMS_A_CONNECTION_MAX: Final = 256
"""Calls of one connection of a client at the same time; more wait in the client. The processes' own sockets have no
such bound: there all clients' calls come over one connection."""
RPCS_MAX: Final = 1_024
"""Calls at the same time, all connections together: each may have one message of RPC_REQUEST_BYTES_MAX under way."""
RPC_REFUSED_WAIT_S_MAX: Final = 0.5
"""A call that is refused by its metadata ends when its first message has come, or after so long."""
RPCS_REFUSED_MAX: Final = 256
"""Such calls that wait for it, all connections together; client addresses share them, and more end at once."""
RPC_KEEPALIVE_S: Final = 20.0
"""How often a silent connection is pinged: a client that is gone gives back what it held."""
HEALTH_POLL_S: Final = 0.5
"""How often the parts are polled for clients that watch the health service."""
RPC_KEEPALIVE_TIMEOUT_S: Final = 10.0
"""How long the answer to a ping may take."""

# --- filter ---------------------------------------------------------------------------------------
FILTER_CHARACTERS_MAX: Final = 16_384
"""One filter's text: room for a list of 1,000 identifiers; cel-cpp's own limit is 100,000."""
FILTER_CANONICAL_CHARACTERS_MAX: Final = 65_536
"""One filter's canonical text, which escapes and spaces make longer than what was written."""
FILTER_NODES_MAX: Final = 1_152
"""Nodes of one filter's tree, 256 comparisons: admission costs some 30 us a node."""
FILTER_CONSTANTS_A_NODE: Final = 2
"""Constants that count as one node: they cost half, and lists of them are what is long."""
FILTER_DEPTH_MAX: Final = 32
"""Nesting of one filter: cel-cpp's own recursion limit, above which its parser refuses."""
FILTER_TOKENS_MAX: Final = 2_500
"""Tokens of one filter in a language that is translated to CEL: room for a list of 1,000 strings with its commas."""
FILTER_LIST_ITEMS_MAX: Final = 1_000
"""Items of one list or map literal."""
FILTERS_MAX: Final = 256
"""Filters of one trigger's spec.filters, nested ones and further attributes included: each is a comparison or more."""
FILTERS_DEPTH_MAX: Final = 16
"""Nesting of `all`, `any` and `not` in spec.filters: half of what the CEL text that they become may nest."""
FILTER_REGEX_CHARACTERS_MAX: Final = 1_000
"""One regular expression: RE2 is linear in the text, but its program grows with the pattern."""
FILTER_REGEX_INSTRUCTIONS_MAX: Final = 10_000
"""RE2's program of one regular expression, about: cel-cpp compiles it at every call, 10,000 in some 4 ms."""
FILTER_COST_MAX: Final = 1_000_000
"""Static cost of one evaluation in steps; a macro over data counts as 100 rounds, so two may nest, three may not."""
FILTER_GROWTH_MAX: Final = 64
"""How many times its event a value may grow to by joining and replacing: 64 MiB in the worst case."""
FILTER_EVALUATION_STEPS_MAX: Final = 300_000
"""Steps of one evaluation on one event, of some 0.1 us: an event that may take more is an error of the filter."""
JSON_VALUES_VISITED_MAX: Final = 10_000
"""Values that one `json.values` looks at: as many as cel-cpp lets macros go over, and a millisecond."""
CUSTOM_DIALECT_S_MAX: Final = 1.0
"""One translation by an installed package's dialect; ours take microseconds, and admission waits for it."""
CUSTOM_REASON_CHARACTERS_MAX: Final = 500
"""The message of one error of a package's dialect."""
PATTERN_FIELDS_MAX: Final = 256
"""Fields of one event pattern, after what every `$or` shares with its neighbours was written into its branches."""
PATTERN_WILDCARDS_MAX: Final = 5
"""`*` in one wildcard of an event pattern; AWS refuses "too complex" ones, by a measure that it does not publish."""
FILTER_CONJUNCTIONS_MAX: Final = 32
"""Conjunctions of one filter: above it the widest disjunctions are left to cel-cpp."""
FILTER_ROWS_MAX: Final = 1_024
"""Rows of one filter in the matcher's table, after a list of constants has become one row an element."""
FILTER_COST_COMPARED: Final = 10
"""Cost of a comparison that every event of a broker needs, in rows of the matcher's table that a look-up finds."""
FILTER_COST_EVALUATED: Final = 1_000
"""The same of an evaluation by cel-cpp, which is a hundred times dearer."""
FILTERS_CACHED_MAX: Final = 16_384
"""Compiled filters and programs kept in memory: some kilobytes each as people write them, at most some 300."""
FILTER_TEMPLATES_CACHED_MAX: Final = 4_096
"""Trees of filters that are kept for others that differ in their texts alone: some 5 KB each."""
TRACE_PARTS_MAX: Final = 200
"""Subexpressions that a trace shows; each costs a compilation of some 100 us."""
TRACE_ELEMENTS_MAX: Final = 100
"""Elements of a macro's range in which a trace looks for the one that decided."""
TRACE_COMPILED_MAX: Final = 1_024
"""Parts of filters that stay compiled, so that a trace of the next event costs little: some kilobytes each."""
FILTER_TRIAL_EVENTS_MAX: Final = 100
"""Events on which a filter is tried at once: as many as a person looks at."""
FILTER_TRIAL_BYTES_MAX: Final = 1 << 20
"""A request to try a filter, with its events."""
FILTER_TRIAL_ROWS_MAX: Final = 200
"""Rows of the matcher's table that an answer over HTTP shows; it says how many it leaves out."""
FILTER_TRACES_S_MAX: Final = 2.0
"""Time for all traces of one request: the events behind it have their outcome alone."""
FILTER_TRACES_BYTES_MAX: Final = 4 << 20
"""Size of all traces of one answer, likewise."""
UNION_FILTERS_MAX: Final = 1_000
"""Different filters that are joined as they are written, at some 0.2 ms each. Beyond it their keys are joined."""
UNION_WRITTEN_CHARACTERS_MAX: Final = 1 << 17
"""Their characters, all together: as many as a thousand filters of a usual length, parsed in about a second."""
UNION_KEYS_MAX: Final = 2_000
"""Different keys that are joined: more are longer than UNION_CHARACTERS_MAX unless some imply most of the others."""
ALGEBRA_ROW_PAIRS_MAX: Final = 10_000
"""Pairs of rows of two filters that are compared: some 20 ms. Filters with more stand in no known relation."""
LINT_FILTERS_MAX: Final = 100_000
"""Of one broker that are compared with one another, at some 0.2 ms and 3 KB each for the first time; and of all brokers
together that are kept compared."""
LINT_ITEMS_MAX: Final = 1_000
"""Triggers and subscriptions in one answer, of those of whose filters something is to be said."""
LINT_UNSEEN_MAX: Final = 1_000
"""Names in all filters of one answer that no event has had, and that are compared with those that some have had."""
LINT_BROKERS_KEPT_MAX: Final = 16
"""Brokers whose filters are kept compared, so that a change is compared alone."""
LINT_CANDIDATES_MAX: Final = 64
"""Filters that one is compared with, at some 3 us each, of those that one of its comparisons finds; and names of others
in what is said of it."""
ALGEBRA_SPLITS_MAX: Final = 3
"""Places of a row whose constants are looked at one by one where no single row of another filter has all of them."""
UNION_CHARACTERS_MAX: Final = 8_192
"""One filter for all that a broker's triggers want; what is longer is widened, so that a source can apply it."""
PRUNE_VALUES_MAX: Final = 1_024
"""Filter values by which a reader skips chunks; every header costs a probe each, so a filter with more skips none."""
LITERAL_BYTES_MIN: Final = 3
"""Shorter texts stand in nearly every chunk: to look for them costs more than it saves."""
LITERAL_STRINGS_MAX: Final = 64
"""Texts of one clause: a reader looks through a chunk once for each of them."""
LITERAL_CLAUSES_MAX: Final = 4
"""Clauses of one filter, the longest texts first: more exclude hardly more chunks."""

# --- log ------------------------------------------------------------------------------------------
BLOOM_BYTES_MIN: Final = 16
BLOOM_BYTES_MAX: Final = 255
"""Bloom filter per chunk, RabbitMQ streams' bounds: one length byte in the header."""
BLOOM_HASHES_MAX: Final = 16
"""Hashes of a Bloom filter: more buy nothing once a chunk has few values."""
BLOOM_MASKS_KEPT_MAX: Final = 4_096
"""Values whose bits are remembered, some 300 bytes each, so that the next filter with them need not hash them again."""
CHUNK_BODY_BYTES_MAX: Final = 1 << 29
"""One chunk's Arrow message: far above a full batch of 1 MiB events, far below Arrow's 2 GiB columns."""
SCHEMA_BYTES_MAX: Final = 1 << 20
"""A segment's schema message: a reader never allocates more on a damaged header."""
SEGMENT_BYTES_MAX: Final = 1 << 28
"""Default size at which a segment ends: retention's unit, and what recovery reads on open (0.1 s)."""
COMMIT_BATCH_BYTES_MAX: Final = 1 << 23
"""Event bytes that one group commit puts into a chunk, unless one submit alone is larger."""
LOG_WAITERS_MAX: Final = 64
"""Readers in other processes that wait for one partition to grow: a task of the matcher for each run alive."""
LOG_PROBE_S: Final = 1.0
"""How often a log that refused its last chunk is probed: /readyz may be this late."""
LOG_PROBE_BYTES: Final = 1 << 20
"""Bytes that a probe writes, syncs and cuts off again: as many as the largest event."""
LOOKUP_CACHE_BYTES_MAX: Final = 64 << 20
"""Chunk bytes that random access keeps in memory: seconds of the tail at full speed."""
LOOKUP_CHUNK_OVERHEAD_BYTES: Final = 8 << 10
"""What a decoded chunk takes beside its bytes, measured: at a slow pace most chunks hold one event."""
INDEX_STRIDE_BYTES: Final = 1 << 16
"""Distance between two remembered chunk positions of a segment: a seek walks at most this far over headers."""
DAMAGES_KEPT: Final = 1_024
"""Damaged places that a process remembers, so that it reports each once."""
SEGMENTS_OPEN_MAX: Final = 8
"""Segments that one reader or lookup keeps open."""
SEGMENT_INDEXES_MAX: Final = 256
"""Segments of a log whose index a process remembers: 4,096 entries and 96 KiB each at most by default."""

# --- scan -----------------------------------------------------------------------------------------
SCAN_CHUNKS_MAX: Final = 2_048
"""Chunks that a reader skips in one turn: some 10 ms, then the other readers have their turns."""
SCAN_BODIES_MAX: Final = 16
"""Chunks whose bodies a reader reads in one turn: some 40 ms at 8,192 events a chunk."""
SCAN_TURN_S: Final = 0.1
"""One turn of a reader, and one evaluation more: what the other readers wait for where a filter is expensive."""
SCAN_TURN_BYTES_MAX: Final = 8 << 20
"""Event bytes that one turn hands out, and a chunk of at most as many, or an event, more."""
SCAN_DECODED_MAX: Final = 256
"""Events that are decoded at once for a filter: a turn may be over before most of them are looked at."""
SCAN_REQUEST_TURN_S: Final = 0.2
"""One turn of a long scan that another process requested: what a cancel or a stop waits for at most."""
READER_RETRY_S: Final = 0.2
READER_RETRIES_MAX: Final = 150
"""Pause and number of retries (30 s together) where the reader does not answer: it is restarted within seconds."""
FIND_EVENTS_MIN: Final = 2_048
"""Events of the first step of a search for the last one that matches an expression; each step has twice as many."""
FIND_EVENTS_MAX: Final = 1 << 20
"""Events of its largest step."""
FIND_COUNT_MAX: Final = 10_000
"""Events that one of its turns finds; only the last one counts."""
READ_EVENTS_PER_TURN: Final = 1_000
"""Events that one turn hands out: what is written to a client before the other readers have their turns."""

BACKTEST_WINDOW_EVENTS: Final = 1_024
"""Events of one window of a sample: some chunks, so that most of what is read is looked at."""
BACKTEST_SHARE_MIN: Final = 0.0001
"""The smallest sample: one window of ten million events."""
BACKTEST_WINDOWS_MAX: Final = 1_000
"""Windows of one page of a backtest, some 100 KB: those that chunks' headers rule out take no time."""
BACKTEST_EVALUATIONS_MAX: Final = 5_000
"""Evaluations of triggers' filters in one turn of a backtest, some 0.1 s; where more are due, fewer events are
compared."""

DEDUPLICATION_WINDOW_S_MIN: Final = 1.0
DEDUPLICATION_WINDOW_S_MAX: Final = 86_400.0
"""A broker's window for events that come again: as long as a start may have to read."""
DEDUPLICATION_EVENTS_MAX: Final = 10_000_000
"""Events that a front knows for it, some 400 MB; on Kafka all fronts together. Above that, an event may be stored
twice, which its broker's status says."""
DEDUPLICATION_SWEEP_S: Final = 1.0
"""Where it is full, how long after a search for those that are over the next one begins."""

# --- control --------------------------------------------------------------------------------------
OBJECT_BYTES_MAX: Final = 256 << 10
"""One object's body, in JSON or YAML: Kubernetes' own bound on annotations, more than any filter needs."""
OBJECT_BYTES_INLINE: Final = 8 << 10
"""In JSON, up to which it is decoded in the event loop; a larger one in a thread. Less than DECODE_BYTES_INLINE, as
every value of an object is looked at, too."""
APPLY_OBJECTS_MAX: Final = 256
"""Objects of one request that applies several: one transaction, for which other writers wait some 50 ms."""
APPLIES_AT_ONCE_MAX: Final = 3
"""Such requests of one `headgate apply` that are under way: one is checked, one stored, one comes."""
APPLY_BYTES_MAX: Final = 4 << 20
"""The body of one; an object in it may be as large as one that comes alone."""
VALIDATOR_PROCESSES_MAX: Final = 8
"""Processes that validate the objects of such requests, one a core; some 60 MB each while there are any."""
VALIDATOR_PROCESSES_DOCUMENTS_MIN: Final = 64
"""Objects of one request for which they are started."""
VALIDATOR_PROCESSES_IDLE_S: Final = 30.0
"""How long they stay when nothing comes."""
OBJECT_DEPTH_MAX: Final = 32
"""Nesting of an object's body; Knative's objects nest six deep."""
OBJECT_NODES_MAX: Final = 20_000
"""Values in one body, with YAML aliases written out: what a chain of aliases may grow to."""
OBJECT_READS_MAX: Final = 3
"""How often who reads the objects of a data directory begins anew because a server started or stopped meanwhile."""
NAMESPACES_MAX: Final = 10_000
"""Namespaces that were created: as many as brokers."""
VALUE_CHARS_MAX: Final = 500
"""JSON of a wrong value in a message: a person reads it."""
JSON_PATCH_OPERATIONS_MAX: Final = 1_000
"""Operations of one JSON patch: more than an object has fields that people change, and milliseconds of work."""
FINALIZERS_MAX: Final = 64
"""Finalizers of one object: one for each controller that cares for it."""
FIELD_MANAGER_CHARS_MAX: Final = 128
"""A field manager's name: Kubernetes' own bound."""
UPDATE_MANAGERS_MAX: Final = 10
"""Managers of updates whose fields are told apart: Kubernetes' own bound; the oldest ones become one."""
MANAGED_FIELDS_BYTES_MAX: Final = 512 << 10
"""All of an object's managed fields: room for every field of the largest object, and for tens of owners of usual
ones."""
YAML_DIRECTIVES_MAX: Final = 16
"""Lines of a YAML text that begin with %: libyaml compares each %TAG with all before it, in one call."""
BROKERS_MAX: Final = 10_000
TRIGGERS_MAX: Final = 200_000
"""Objects in the store, which namespaces share. Twice the number of filters for which matching has been measured."""
SUBSCRIPTIONS_MAX: Final = 1_000
"""Objects in the store, which namespaces share: each keeps a cursor and up to SUBSCRIPTION_UNACKED_MAX positions in
the dispatcher."""
RBAC_OBJECTS_MAX: Final = 4_096
"""Roles in the store, and as many of each other kind of rights: one decision may look at all that somebody has."""
RBAC_RULES_MAX: Final = 64
"""Rules of a role."""
RBAC_RULE_ITEMS_MAX: Final = 64
"""Verbs, groups, resources, names or paths of a rule, each."""
RBAC_SUBJECTS_MAX: Final = 64
"""Users, groups and service accounts of a binding."""
RBAC_TEXT_CHARS_MAX: Final = 512
"""A verb, a resource, a path or a subject's name."""
RBAC_GRANT_STEPS_MAX: Final = 2_000
"""Single combinations of verb, group, resource and name that are looked at when a role is given: some 20 ms."""
RBAC_CEILING_CHARS_MAX: Final = 4_096
"""A ceiling, of a rule, and of a user on a broker by all of his rules: over it he gets nothing. Ten tenants' ids are a
tenth of it, and it goes along as a header inside of the server."""
RBAC_DECISIONS_MAX: Final = 65_536
"""Decisions that a process remembers, some 30 MiB; over it all are forgotten."""
EVENT_POLICIES_MAX: Final = 4_096
"""EventPolicies in the store: each front has all of them compiled."""
EVENT_POLICIES_PER_NAMESPACE_MAX: Final = 64
"""EventPolicies of one namespace: each may ask something of every event of a broker."""
EVENT_TYPES_MAX: Final = 16_384
"""EventTypes in the store."""
EVENT_TYPES_PER_NAMESPACE_MAX: Final = 1_024
"""EventTypes of one namespace: a producer that makes up types cannot fill the store."""
EVENT_TYPE_TEXT_CHARS_MAX: Final = 2_048
"""Type, source, schema and description of an EventType, each."""
EVENT_TYPE_SCHEMA_CHARS_MAX: Final = 65_536
"""The schema that an EventType holds."""
EVENT_POLICY_ITEMS_MAX: Final = 64
"""Items of spec.to and of spec.from of an EventPolicy, and conditions of one selector, each."""
EVENT_POLICY_TURN_S: Final = 0.002
"""How long a front evaluates filters of EventPolicies before it lets other requests go on."""
EVENT_POLICY_S_MAX: Final = 1.0
"""How long it evaluates them for one request: one that needs more is refused."""
SENDERS_KEPT_MAX: Final = 4_096
"""Triggers whose user names a process remembers."""
ROUTES_REMEMBERED_MAX: Final = 4_096
"""Requests whose right a process remembers: method, path and query; those asked for last stay."""
ROUTE_REMEMBERED_CHARS_MAX: Final = 512
"""Method, path and query together of a request whose right is remembered."""
CONSUMER_METADATA_MAX: Final = 64
"""Names in one spec.consumerMetadata."""
ACK_TIMEOUT_S_DEFAULT: Final = 30.0
"""spec.ackTimeout when it is left out."""
ACK_TIMEOUT_S_MIN: Final = 1.0
"""Below it a busy machine would hand out events again that are being worked on."""
ACK_TIMEOUT_S_MAX: Final = 86_400.0
"""A day: what no consumer has finished by then goes to another one."""
MAX_DELIVERIES_MAX: Final = 1_000
"""spec.maxDeliveries: with the shortest ack timeout a quarter of an hour; leave it out for no bound."""
LIST_PAGE_MAX: Final = 1_000
"""Objects in one page of a list; kubectl asks for 500."""
SEARCH_CHARS_MAX: Final = 256
"""The `search` of a list."""
STATS_PAGE_DEFAULT: Final = 50
"""Objects of one page of `triggerstats` or `brokerstats`, where a request does not say."""
STATS_PAGE_MAX: Final = 500
"""Objects of such a page at most: each costs a look into the dispatcher's memory, and the log for its oldest event."""
ATTENTION_MAX: Final = 200
"""Conditions that a summary lists; it counts them all."""
SEEN_NAMESPACES_MAX: Final = 1_000
"""Namespaces that a user is told that he may see."""
CONTINUE_CHARS_MAX: Final = 1_024
"""A list's continue token as a client hands it back."""
WARNINGS_CHARACTERS_MAX: Final = 4_096
"""Warnings of one answer, which are headers: as Kubernetes has it; clients give up on some kilobytes of headers."""
REPEATED_MEMBERS_TOLD_MAX: Final = 10
"""Members that a JSON body has twice, as far as an answer names them."""
SELECTOR_CHARS_MAX: Final = 4_096
"""A label or field selector."""
RECOMPILED_FILTERS_MAX: Final = 200
"""Filters of one transaction when stored filters are compiled anew: some 10 ms for which other writers wait."""

SECRET_BYTES_MAX: Final = 1 << 20
"""All values of one Secret, decoded: Kubernetes' own bound."""
SECRET_BODY_BYTES_MAX: Final = 3 << 20
"""One Secret's body: its values in Base64, and once more in an annotation that clients keep; Kubernetes' own bound."""
SECRETS_PER_NAMESPACE_MAX: Final = 1_000
"""Secrets of one namespace: some for each of its triggers' subscribers."""
SECRETS_MAX: Final = 20_000
"""Secrets in the store: twice as many as namespaces."""
BROKER_RETENTION_S_MIN: Final = 1.0
BROKER_RETENTION_S_MAX: Final = 3_153_600_000.0
"""How long a broker's events are seen, at least and at most: a hundred years is for ever."""
RESOURCE_QUOTAS_PER_NAMESPACE_MAX: Final = 16
"""Resource quotas of one namespace: every write of an object of it reads them all."""
RESOURCE_QUOTAS_MAX: Final = 20_000
"""Resource quotas in the store: twice as many as namespaces."""
QUOTA_BURST_S: Final = 1.0
"""What a namespace may publish at once after a pause: what its quota brings in so many seconds."""
QUOTA_REFUSAL_S: Final = 0.1
"""How long a refused publish request waits for its answer, half as long to half as long again: what a connection that
does not slow down costs others."""
QUOTA_RETRY_AFTER_S_MAX: Final = 60
"""The longest wait that a producer is told whose namespace is over its quota: the quota may change meanwhile."""
QUOTA_USAGE_S: Final = 1.0
"""How often the processes of a server tell each other what namespaces use of quotas that none of them knows alone."""
QUOTA_STATUS_S: Final = 5.0
"""Between two rewrites of a quota's status for such usage, which may change all the time."""
STORED_BYTES_SNAPSHOT_S: Final = 10.0
"""How often a front writes down what namespaces store, if that has changed: a start reads the log from there on."""
DEADLETTER_QUOTA_PAUSE_S: Final = 30.0
"""When a delivery is tried again that would be given up, and whose namespace has as many dead letters as it may."""
QUOTA_FRONTS_MAX: Final = 10_000
"""Fronts of a whole deployment that share a quota."""
QUOTA_NAMESPACES_SHOWN_MAX: Final = 100
"""Namespaces with publish quotas of which metrics are published; what is over counts as other."""
QUOTA_QUANTITY_CHARS_MAX: Final = 40
"""One quantity of a quota, as it is written."""
SECRETS_KEYS_MAX: Final = 64
"""Keys by which stored Secrets may be encrypted: a rotation needs two."""
SECRETS_KEY_COMMAND_S_MAX: Final = 10.0
"""How long the command that prints these keys may take."""
SECRETS_READ_MAX: Final = 16
"""Secrets of a list that are read and sent at once, and those that a pass over statuses keeps: each may be large."""
CREDENTIAL_BYTES_MAX: Final = 32 << 10
"""One value that a delivery authenticates by: a chain of certificates, or a large token."""
CA_CERTS_BYTES_MAX: Final = 64 << 10
"""CA certificates of one subscriber: some tens of them."""
SIGNING_SECRETS_MAX: Final = 4
"""Secrets by which one delivery is signed at the same time: a rotation needs two."""
OAUTH_SCOPES_MAX: Final = 64
"""Scopes of one token."""
CREDENTIALS_KEPT_MAX: Final = 4_096
"""Sets of credentials that a dispatcher keeps in memory, usually some kilobytes each; over it all are read again."""
OAUTH_S_MAX: Final = 10.0
"""One request for a token."""
OAUTH_ANSWER_BYTES_MAX: Final = 64 << 10
"""The answer of a token endpoint that is read."""
OAUTH_TOKENS_MAX: Final = 10_000
"""Tokens that a dispatcher keeps; the oldest go first, and are asked for again."""
OAUTH_RETRY_S: Final = 1.0
"""Between two requests for the same token, the first of which failed; and the least that a token counts."""
OAUTH_REFUSED_S: Final = 5.0
"""How old a token is at least that is asked for anew because a subscriber refused it with 401."""
OAUTH_LIFE_S_DEFAULT: Final = 60.0
"""How long a token counts whose answer does not say so."""
OAUTH_LIFE_S_MAX: Final = 86_400.0
"""How long a token counts at most."""
IDENTITY_TOKEN_S: Final = 3_600.0
"""How long a token counts that this server signs for a subscriber."""
SIGNING_KEY_EARLY_S: Final = 7_200
"""How long a signing key is published before it signs, and after: twice the life of a token."""
SIGNING_KEY_LIFE_S: Final = 30 * 86_400
"""How long one key signs: a month."""
HANDSHAKE_S: Final = 86_400.0
"""How long a subscriber's permission counts before it is asked again."""
HANDSHAKE_RETRY_S: Final = 30.0
"""Between two handshakes with a subscriber that did not agree."""
HANDSHAKE_ANSWER_S_MAX: Final = 10.0
"""For a subscriber's answer to a handshake."""
HANDSHAKE_REFUSALS_CHECKED_MAX: Final = 100
"""Refusals that are looked at when a Secret or a permission has changed; the others wait for HANDSHAKE_RETRY_S."""
HANDSHAKE_GRANT_S: Final = 365 * 86_400
"""How long a permission by callback counts: somebody may have given it by hand."""
HANDSHAKE_GRANTS_MAX: Final = 100_000
"""Permissions by callback that are kept; the oldest go first."""
SECRETS_RESEALED_MAX: Final = 16
"""Secrets of one transaction when they are encrypted by another key: some 10 ms for which other writers wait."""

WATCH_EVENTS_MAX: Final = 20_480
"""Changes kept for watchers: one rewrite of the status of 10,000 triggers must not expire them all."""
WATCH_BYTES_MAX: Final = 64 << 20
"""Disk space of the changes kept for watchers."""
WATCHES_MAX: Final = 256
"""Watches open at the same time."""
WATCH_SECONDS_MAX: Final = 3_600
"""A watch ends after this; clients open the next one where it ended."""
PROPAGATION_WAIT_SECONDS_MAX: Final = 60
"""How long a request for a broker's filter may wait for a change: below the timeouts of usual proxies."""
PROPAGATION_BROKERS_KEPT: Final = 1_000
"""Brokers whose joined filter is remembered."""
RETRY_MAX: Final = 1_000
"""spec.delivery.retry: with the longest back-off this is over a year."""
RETRY_S_DEFAULT: Final = 24 * 3_600.0
"""How long an event is retried when spec.delivery.retry is left out: a night and a working day of an outage."""
BACKOFF_DEFAULT_S_MAX: Final = 60.0
"""What the back-off grows to then, unless the delay itself is longer: how late a subscriber's return is noticed."""
BACKOFF_SECONDS_MAX: Final = 86_400
"""spec.delivery.backoffDelay, and what the back-off of a later attempt grows to at most."""
TIMEOUT_SECONDS_MAX: Final = 600
"""spec.delivery.timeout: a subscriber that needs longer answers 202 and works later."""
TTL_SECONDS_MAX: Final = 30 * 86_400
"""spec.delivery.ttl: of what is kept longer a log's retention decides."""
PARALLELISM_MAX: Final = 256
"""spec.delivery.parallelism: a quarter of the permits that all targets share."""
BATCH_SIZE_MAX: Final = 1_000
"""spec.delivery.batchSize: as many events as one target keeps in memory."""
BATCH_WAIT_SECONDS_MAX: Final = 60
"""spec.delivery.batchWait: a batch that waits for longer is a schedule, not a batch."""
URL_CHARS_MAX: Final = 2_048
"""A subscriber's URL: what proxies and servers are known to take."""
HOST_LABEL_CHARS_MAX: Final = 63
"""One part of a host name, in ASCII (RFC 1035): the system's resolver cannot be asked for a longer one."""
MANIFEST_BYTES_MAX: Final = 16 << 20
"""One manifest file (many documents)."""
MANIFEST_DEPTH_MAX: Final = OBJECT_DEPTH_MAX + 2
"""Nesting of one document of it: an object may be an item of a List."""
MANIFEST_FILES_MAX: Final = 10_000
"""Files in a directory of manifests."""
TARGET_PARALLEL_DEFAULT: Final = 32
"""Attempts to one target at the same time, when its spec.delivery does not say how many."""
RATE_PER_S_MAX: Final = 1_000_000.0
RATE_PER_S_MIN: Final = 0.01
"""spec.delivery.rateLimit: from an event in 100 s to more than any subscriber takes. No redrive or replay is slower."""

# --- ingress --------------------------------------------------------------------------------------
REQUEST_HEAD_BYTES_MAX: Final = 192 << 10
"""Request line and all headers of one request: HEADER_ATTRIBUTES_BYTES_MAX and room for the others.
What a chunked body has beside its data (trailers, extensions of chunks) is dropped, and has the same bound."""
REQUEST_HEADERS_MAX: Final = 512
"""Headers of one request: no real event has 500 extensions."""
REQUEST_HEAD_S_MAX: Final = 10.0
"""From a request's first byte (or the connection) to the end of its head: slow loris' time."""
REQUEST_S_MAX: Final = 60.0
"""From a request's first byte to its last: 4 MiB at 0.6 Mbit/s."""
WRITE_STALLED_S_MAX: Final = 120.0
"""A client that reads nothing of its answer for so long is disconnected: up to 8 MiB are held for it."""
PIPELINE_BYTES: Final = 4 << 10
"""Of requests that come ahead of the answers to those before them, so much is parsed in one go."""
KEEP_ALIVE_S: Final = 120
"""A connection without a request stays open so long: longer than the 90 s after which the clients of Go and Rust drop
one by themselves, so that none sends into a connection that the server is closing."""
CONNECTIONS_MAX: Final = 8_192
"""Connections of clients at the same time; for one more the oldest idle one is closed. Each is a file."""
CONNECTIONS_A_CLIENT_MAX: Final = 4_096
"""Those of one address, or /64 network of IPv6: half, so that one alone, also a proxy, leaves room for others."""
TLS_HANDSHAKE_S_MAX: Final = 10.0
"""From a connection to the end of its TLS handshake; it counts as a connection meanwhile."""
ACCEPT_PAUSE_S: Final = 1.0
"""Pause after a connection could not be accepted, most likely because too many files are open."""
TLS_SHUTDOWN_S_MAX: Final = 5.0
"""How long the end of a TLS connection waits for the client's own."""
BODIES_READING_BYTES_MAX: Final = 64 << 20
"""Bodies that are being received in pieces, all connections together; namespaces and users share it."""
COMMIT_QUEUE_EVENTS_MAX: Final = 50_000
"""Events of one partition that wait for the disk: some 0.3 s at full speed. Namespaces share it."""
COMMIT_QUEUE_BYTES_MAX: Final = 64 << 20
"""The same in bytes, headers included: sixteen of the largest batches."""
COMMIT_CHUNK_EVENTS_MAX: Final = 8_192
"""Events of one chunk, unless one batch has more: beyond it a larger chunk costs latency and gains nothing."""
PARTITION_TURN_UNDER_WAY: Final = 8
"""Requests that are being stored from which on a partition's turn lasts longer than one request: they share chunks."""
PARTITION_TURN_EVENTS_MAX: Final = 1_024
"""Events of such a turn: some chunks' worth, few enough that the matcher's tasks all have work."""
PRODUCERS_MAX: Final = 10_000
"""Producers whose newest number is known, some 500 bytes each: for a further one the namespace that has most of them,
and in it the user who has most, gives up the one that has been silent for longest."""
PRODUCER_CHARS_MAX: Final = 128
"""A producer's name: it is stored with each of its events."""
PRODUCERS_SNAPSHOT_EVENTS: Final = 1_000_000
"""Events stored until producers' numbers are written down again: what a start reads of the log, in about a second."""
PRODUCERS_POLL_S: Final = 5.0
"""How often that number is checked."""
RETRY_AFTER_OVERLOAD_S: Final = 1
"""Retry-After when a queue is full: it empties in less."""
RETRY_AFTER_UNAVAILABLE_S: Final = 5
"""Retry-After when the log does not take events: an operator or a restart has to help."""
HOPS_MAX: Final = 32
"""Brokers that an event and its replies may pass one after the other; then it is a loop."""
DESCENDANTS_MAX: Final = 1_000
"""Descendants of one event, by replies and by brokers that are subscribers: a larger tree is a loop."""
ROOTS_KEPT_MAX: Final = 65_536
"""Trees whose size is known, some 200 bytes each."""
ROOT_CHARS_MAX: Final = 64
"""The header that names an event's tree: ours have some 30."""
PUBLISH_EVENTS_MAX: Final = 1_000
"""Events of one request to publish."""
PUBLISH_REQUESTS_MAX: Final = 32
"""Requests of one stream that wait for the disk; the next is read when the oldest is answered."""
PUBLISH_STREAMS_MAX: Final = 256
"""Streams that publish, at the same time."""
FRONT_DRAIN_S_MAX: Final = 5
"""Requests in flight may end within this on stop."""

# --- stream ---------------------------------------------------------------------------------------
LOG_FILE_BYTES_MAX: Final = 8 << 20
"""Of `server.log` in the data directory; then another one begins, and the one before is kept."""
READ_LAST_EVENTS_MAX: Final = 500
"""Last events of each partition with which a reader can begin: as many as a person looks at."""
READ_EVENTS_MAX: Final = 1_000_000_000
"""Largest `limit` of one request; a client that wants more sends another."""
READ_BATCH_EVENTS_MAX: Final = 10_000
"""Events of one answer in the batch format, which is one JSON array in memory."""
READ_BATCH_BYTES_MAX: Final = 8 << 20
"""Event bytes of one such answer, and a turn more."""
READ_ENCODE_BYTES_MAX: Final = 256 << 10
"""Event bytes that are encoded on the event loop, in a millisecond or two; more are in a thread."""
READ_VALUES_MAX: Final = 256
"""Filter values of one reader: each is looked for in every chunk's filter."""
READ_WAIT_S_MAX: Final = 60.0
"""How long a request may wait for a first event: below what proxies take for a dead connection."""
READ_POLL_S: Final = 0.02
"""How often a reader at the end polls for more."""
READ_PROGRESS_S: Final = 1.0
"""How often a reader gets its position in every partition."""
READ_THREADS: Final = 4
"""Threads that read the log for all readers."""
READ_DRAIN_S_MAX: Final = 1
"""On stop readers are cut off after this: they know where they are."""
READERS_MAX: Final = 256
"""Readers at the same time, each with a socket and up to three open files a partition."""

# --- match ----------------------------------------------------------------------------------------
BROKER_KEYS_MAX: Final = 256
"""Key specs of one broker; each costs every event 0.1 us. Above it signatures share coarser ones."""
SHARED_ATOMS_MAX: Final = 32
"""Comparisons with one constant that many filters of a broker have: each event is compared once for all of them."""
SHARED_ATOM_SHARE: Final = 16
"""Many filters are one in so many: an event meets some dozens of rows, and one comparison saves as many as those."""
SHARED_ATOM_FILTERS_MIN: Final = 64
"""Filters that have to have a comparison before it is shared, however few there are in all."""
PATTERNS_COMPILED_MAX: Final = 64
"""Patterns of residual comparisons in the Spark plan; the rows of rarer ones are left to cel-cpp."""
ROUTING_STEPS_MAX: Final = 64
"""Changes that a routing table knows of; who has an older table than these looks at all targets."""
DROPPED_ROUTINGS_KEPT: Final = 1_000
"""Changes of routing for which control.db knows what went; who has not looked since reads which targets there are."""
MATCH_LIKELY_ROWS_MAX: Final = 1_000
"""A plan for so few rows also has the patterns that most filters consist of, so that the first one of each kind needs
no new query. Beside many rows they would cost a fifth of the rate, and many filters have most patterns already."""
MATCH_OVERLAY_ROWS_MAX: Final = 4_096
"""Rows of changed filters that stand over the broadcast table; above it, or half of the table, it is broadcast anew."""
JVM_HEAP_MIB: Final = 2_048
"""The matcher's heap: the broadcast table of 100,000 filters, twice during a takeover, leaves most of it free."""
JVM_GC_S: Final = 300.0
"""How often the JVM collects garbage when it had no other reason to: memory that churn took is given back."""
JVM_RETAINED_MAX: Final = 20
"""Ended jobs, stages, tasks and queries that Spark remembers; Headgate uses none of them."""
REAL_TIME_BATCH_S: Final = 24 * 3_600
"""One real-time batch. A boundary between two would break the run's connections, so no run may live as long."""
RUN_AGE_S_MAX: Final = REAL_TIME_BATCH_S - 3_600
"""A run this old is replaced by another of the same generation: an hour is left for that to succeed."""
MATCH_POLL_S: Final = 0.25
"""How often the matcher looks for a stop; a commit to the objects and a message of a dispatcher wake it at once."""
MATCH_QUIET_S_MIN: Final = 0.01
MATCH_QUIET_S_MAX: Final = 0.1
"""Changed filters are taken up when they have been quiet for as long as taking up the last ones took, between these: a
client that applies fifty at once costs one change."""
MATCH_CHANGING_S_MIN: Final = 0.5
"""Filters that keep changing are taken up after so long."""
MATCH_CHANGING_STARTS: Final = 4.0
"""Or after as many times what taking up the last ones took, if that is longer: who applies ten thousand one by one does
not keep the processor at changes that the next one replaces."""
MATCH_CHANGING_S_MAX: Final = 5.0
"""And after so long in any case, or when the last ones are taken up, if that takes longer."""
MATCH_RETRY_S_MIN: Final = 0.2
MATCH_RETRY_S_MAX: Final = 10.0
"""Pause after a failed run: doubles with every failure."""
MATCH_STABLE_S: Final = 30.0
"""After a run was in force for so long the next pause is the shortest again."""
CANDIDATE_S_MAX: Final = 600.0
"""A run that lives but is not in force after this is given up. It takes a second or two, and longer only while the run
in force is that far behind the log's end, where the next one starts."""
RUN_CHECK_S: Final = 0.5
"""How often Spark is polled for whether a run lives; mostly the dispatcher notices earlier."""
RUN_SETTLED_S: Final = 5.0
"""After a run was in force for so long the JVM gives back what its start took."""
DRIVER_ANSWER_S_MAX: Final = 10.0
"""A dispatcher answers the driver connection within this, or the connection is given up."""
DRIVER_LINE_BYTES_MAX: Final = 1 << 16
"""One JSON line of a dispatcher: offsets of 64 partitions take 2 KiB."""

# --- spark ----------------------------------------------------------------------------------------
SPARK_FILTERS_MAX: Final = 1_000_000
"""Filters of one match of the library: compiled on the driver at some 0.3 ms each, and broadcast as one table."""
SPARK_REFUSALS_SHOWN: Final = 10
"""Ids of filters that do not compile, in one message."""
SPARK_ARROW_BATCH_BYTES_MAX: Final = 16 << 20
"""Rows that go to Python at once, but for the last row: Spark's own bound is their number alone, at 1 MiB an event."""
SPARK_KAFKA_ANSWER_S_MAX: Final = 30.0
"""Until the driver's question to Kafka is given up: three times the silence after a broker's death."""

# --- outbox ---------------------------------------------------------------------------------------
CORES_A_DISPATCHER: Final = 4
"""A new server has one dispatcher for so many: fronts, matcher and subscribers need the others."""
DISPATCHERS_MAX: Final = 16
"""Processes that deliver: every one of them writes and syncs an outbox, and the matcher's tasks connect to all."""
SOCKET_PATH_BYTES_MAX: Final = 107
"""Of a Unix socket's path, of which each process has some: what Linux takes."""
LINK_PARTITIONS_MAX: Final = 1_024
"""Partitions of one run: sixteen times what the settings allow."""
LINK_RUNS_MAX: Final = 8
"""Runs alive at once: one in force, one taking over, and those that have not closed their sockets yet."""
LINK_DEAD_RUNS_MAX: Final = 64
"""Dead runs remembered, so that a connection that comes late is refused."""
LINK_CONNECTIONS_MAX: Final = 2_048
"""Connections of the match link, those without a hello included."""
LINK_HELLO_S_MAX: Final = 5.0
"""A connection without a hello is closed after this."""
LINK_SILENCE_S_MAX: Final = 30.0
"""A run's connection sends every second; one silent for this long is dead (a long GC pause is shorter)."""
LINK_LINE_BYTES_MAX: Final = 1 << 16
"""One JSON line of the driver's connection."""
LINK_ROWS_PER_EVENT_MAX: Final = 1 << 20
"""Targets of one event: five times TRIGGERS_MAX."""
LINK_HELD_ROWS_MAX: Final = 1 << 17
"""Rows held of a run that waits for its takeover (about 12 MiB); over it the connection is not read."""
TAKEOVER_NEAR_EVENTS: Final = 1_024
"""A run this close behind the owner is waited for: some 10 ms of matching."""
TAKEOVER_NEAR_MISSES_MAX: Final = 63
"""So often a new run on Kafka may end close behind the owner before it takes over from there: six bits of a commit."""
TAKEOVER_NEAR_MISS_SHARE: Final = 8
"""One record in so many is such a miss: a new run has brought some 500 by then, and is warm."""
OUTBOX_PENDING_ROWS_MAX: Final = 1 << 17
"""Rows between the link and the scheduler; over it no connection of the link is read."""
OUTBOX_CHUNK_ROWS_MAX: Final = 1 << 16
"""Rows in one outbox chunk (1.6 MiB), unless one event has more."""
OUTBOX_PROGRESS_S_MAX: Final = 0.2
"""How late the progress of events that match nothing reaches the outbox: what a restart matches again."""
OUTBOX_RETRY_S: Final = 0.25
"""Pause before a failed outbox write is tried again."""

# --- delivery -------------------------------------------------------------------------------------
HAND_ROWS_PER_TURN: Final = 512
"""Outbox rows handed to the scheduler in one turn of the event loop: answers are handled in between."""
TARGET_QUEUE_MAX: Final = 1_024
"""Deliveries of one target in memory; beyond it the target lags and is read from the outbox again."""
DELIVERIES_LIVE_MAX: Final = 1 << 18
"""Deliveries of all targets in memory (about 100 MiB); beyond it a target keeps TARGET_CROWDED_MAX."""
TARGET_CROWDED_MAX: Final = 32
"""Deliveries of one target in memory when there are DELIVERIES_LIVE_MAX."""
ATTEMPTS_HEALTHY_MAX: Final = 1_024
"""Attempts at the same time to targets that answer."""
ATTEMPTS_SLOW_MAX: Final = 1_024
"""New attempts to targets that do not answer start only below it: they cannot use up the permits of the others."""
ATTEMPTS_MAX: Final = 4_096
"""Attempts at the same time, all together: sockets."""
ATTEMPTS_PART_MIN: Final = 64
"""The same for each of many schedulers in a process, which divide the three above among themselves."""
ATTEMPT_BYTES_MAX: Final = 256 << 20
"""Event bytes in attempts at the same time."""
SLOW_AFTER_S: Final = 1.0
"""A target whose oldest running attempt is older counts as one that does not answer."""
DNS_TTL_S: Final = 30.0
"""How long an answer about a subscriber's name is good; the system's resolver does not tell its own."""
DNS_STALE_S: Final = 600.0
"""How long an answer serves while no newer one comes."""
DNS_FAILURE_S: Final = 2.0
"""How long a failure to resolve is remembered."""
DNS_S_MAX: Final = 10.0
"""An attempt waits so long for its name, within CONNECT_S_MAX's purpose."""
DNS_THREADS_MAX: Final = 32
"""Names resolved at the same time, by threads that namespaces and triggers share; known names wait for none."""
DNS_ADDRESSES_MAX: Final = 8
"""Addresses of one name that are tried one after the other."""
ROUTES_KEPT_MAX: Final = 65_536
"""URLs whose route is remembered, and addresses with a pool of connections; some 500 bytes each."""
TLS_CONTEXTS_MAX: Final = 1_024
"""What TLS trusts and shows to subscribers, loaded and kept: one for all without CAs or certificates of their own."""
JOURNAL_BYTES_MAX: Final = 32 << 20
"""Each of the two files that remember attempts: 1 million attempts, minutes at full speed and weeks at ten a second."""
JOURNAL_FLUSH_S: Final = 0.25
"""How late an attempt reaches the journal."""
CIRCUIT_FAILURES_MAX: Final = 32
"""Attempts in a row without an answer that open a target's circuit: as many as it may have in flight by default."""
UNHEALTHY_AFTER_S: Final = 10.0
"""A subscriber that has taken nothing for so long, though attempted, counts as unhealthy: a restart is shorter."""
REFUSED_UNHEALTHY: Final = 10
"""So many events refused for good in a row, and none taken, make a subscriber unhealthy: fewer may be bad events."""
CIRCUIT_PAUSE_S_MIN: Final = 1.0
CIRCUIT_PAUSE_S_MAX: Final = 30.0
"""Pause of an open circuit: doubles while nobody answers; what a target that came back may wait at most."""
EVENT_CACHE_BYTES_MAX: Final = 32 << 20
"""Decoded events kept for further targets."""
VIEWS_KEPT_MAX: Final = 64
"""Parsed events that are kept for the filters and transforms of further targets; each takes fifty times its data."""
VIEW_KEPT_BYTES_MAX: Final = 16 << 10
"""Data of an event whose parsed form is kept; of larger ones only the last one's is."""
CACHED_PAGES_S: Final = 30.0
"""Events whose rows came within this time are read on the event loop: the page cache has them from the matcher."""
RESPONSE_BYTES_MAX: Final = EVENT_BYTES_MAX + (64 << 10)
"""A subscriber's answer: one event and its envelope; what is longer is cut off with its connection."""
REPLY_RETRY_S: Final = 0.1
"""Pause before a reply is offered again to a front that does not listen."""
REPLY_STORE_SECONDS_MAX: Final = 10.0
"""Storing a reply: front answers in milliseconds, or does not work now."""
ANSWER_HEAD_BYTES_MAX: Final = 64 << 10
"""Bytes of a subscriber's answer without any of its body: head, interim answers, trailers."""
ANSWER_HEADERS_MAX: Final = 128
"""Header lines of a subscriber's answer, several times the usual number."""
ATTEMPT_DETAIL_CHARS_MAX: Final = 1_000
"""The text of why an attempt had no answer: several times the usual length; a longer one ends in dots."""
ERROR_BODY_BYTES_MAX: Final = 768
"""Bytes kept of an error's body: what 1,024 characters of knativeerrordata hold in Base64."""
REPLIES_READING_BYTES_MAX: Final = 64 << 20
"""Replies that are being received, all subscribers together; one above it is asked for again."""
CONNECT_S_MAX: Final = 10.0
"""Connecting to a subscriber; the attempt's own timeout may be shorter."""
CURSOR_FLUSH_S: Final = 0.05
"""How old the cursors in their file may be: deliveries ended since then are repeated after a crash."""
CURSOR_SYNC_S: Final = 1.0
"""How old the cursors on the disk may be, and a flush: deliveries ended since then are repeated after a power cut."""

# --- storage ------------------------------------------------------------------------------------

COMMIT_RECORD_SYNC_S: Final = 1.0
"""How old the number of commits beside a database may be after a power cut; with it goes only a part of a check."""
WAL_FRAMES_MAX: Final = 1_000
"""Pages in a write-ahead log, about 4 MiB, after which it is brought into its database. SQLite has the same."""

# --- deadletters ----------------------------------------------------------------------------------
DEADLETTER_COUNTS_MAX: Final = 1_000
"""Rows of an answer that counts dead letters by trigger, reason and state: those with most."""
DEADLETTERS_MAX: Final = 1_000_000
"""Dead letters in the store, which namespaces share; when it is full, deliveries that were given up wait."""
DEADLETTERS_BYTES_MAX: Final = 4 << 30
"""The same in bytes of their events."""
DEADLETTERS_BATCH_MAX: Final = 256
"""Dead letters written in one transaction: some milliseconds."""
DEADLETTERS_BATCH_BYTES_MAX: Final = 8 << 20
"""Their events."""
DEADLETTER_ATTEMPTS_MAX: Final = 256
"""Dead letters in flight at the same time, all together, until their outcomes are on disk."""
DEADLETTER_URL_ATTEMPTS_MAX: Final = 32
"""Dead letters in flight to one URL: one sink that hangs does not use up the permits of the others."""
DEADLETTER_UNPROVEN_ATTEMPTS_MAX: Final = 1
"""Dead letters of a trigger in flight to a URL that did not answer the last one: a sink that hangs holds one permit."""
DEADLETTER_RETRY_S: Final = 1.0
"""Pause before dead letters that found no room, or no disk, are written again."""
DEADLETTER_TURN_S: Final = 0.05
"""Pause before dead letters that are due and found no permit are tried again."""
DEADLETTER_SLEEP_S_MAX: Final = 1.0
"""The longest pause between two looks for dead letters that are due: the machine's clock may jump."""
PENDING_MAX: Final = 10_000_000
"""Events of one dispatcher that wait for their time, on its disk; when there are as many, further ones wait in the
outbox."""
PENDING_BYTES_MAX: Final = 16 << 30
"""The same in bytes of their events."""
PENDING_SECONDS_MAX: Final = 7 * 86_400
"""How long an event may wait for its time, by its deliverytime or spec.delivery.delay."""
PENDING_RELEASED_MAX: Final = 256
"""Events of one trigger in memory whose time has come: a quarter of a queue, so that new ones have room."""
PENDING_STORING_MAX: Final = 8_192
"""Events that are being stored to wait, at the same time: beyond it they stay where they are for DEADLETTER_RETRY_S."""
DEADLETTER_PAGE_MAX: Final = 1_000
"""Dead letters that one API request reads."""
DEADLETTERS_PASSED_MAX: Final = 1_000
"""Dead letters of others that a request of a user below a ceiling passes over, some 0.1 s: then it says where to go
on."""
REDRIVE_RATE_DEFAULT: Final = 100.0
REDRIVE_RATE_MAX: Final = 10_000.0
"""Dead letters a second that a redrive sends."""

# --- subscriptions --------------------------------------------------------------------------------
SUBSCRIPTION_UNACKED_MAX: Final = 4_096
"""Events of one subscription with consumers at the same time: what an acknowledgement writes down (about 150 KB)."""
SUBSCRIPTION_FLUSH_S: Final = 1.0
"""How late what was read and handed out, but not acknowledged, is written down: what a restart hands out again."""
PULL_SEARCH_S: Final = 10.0
"""How long a pull searches for a first event while it finds only unwanted ones, even one that does not wait."""
PULL_REJECTED_MAX: Final = 256
"""Unwanted events of one turn of a pull, 0.2 s of cel-cpp's time: then other consumers have their turns.

To count a backlog below a ceiling as many are looked at that the matcher has left open; further ones do not count."""
BACKFILL_POLL_S: Final = 0.1
"""How often a pull checks whether the filter to backfill is in force."""
SEEK_SLACK_S: Final = 60.0
"""How much earlier than an event the search for its outbox row begins: a clock that was set back costs no event."""
PULL_EVENTS_MAX: Final = 1_000
"""Events of one pull."""
PULL_EVENTS_DEFAULT: Final = 100
"""Events of one pull by default."""
PULL_BYTES_MAX: Final = 8 << 20
"""Bytes of events of one pull, beyond which no further event is added."""
PULL_WAIT_S_MAX: Final = 30.0
"""How long a pull may wait for an event."""
PULL_POLL_S: Final = 1.0
"""How often a waiting pull checks that its client is still connected."""
ACKS_MAX: Final = 64
"""Requests of one consumer's stream whose acknowledgements are being written; the next one waits."""
SEEK_PROGRESS_S: Final = 0.5
"""How often a seek over gRPC reports its progress."""
PULL_BREAK_OFF_S_MAX: Final = 1.0
"""Until a partition of the outbox that goes to another dispatcher waits no more for answers that it has broken off."""
PULLS_MAX: Final = 1_024
"""Pulls and streams of consumers at the same time, all subscriptions of a dispatcher together."""
CONSUMERS_SHOWN_MAX: Final = 1_000
"""Consumers of one subscription that an answer names."""
KEY_CONSUMERS_MAX: Final = 1_000
"""Consumers that share one subscription by key: who has a key is looked for among them."""
CONSUMER_CHARS_MAX: Final = 128
"""A consumer's name."""
ANALYZE_EVENTS_MAX: Final = 100_000
"""Events of a backlog that one analysis evaluates, some seconds; the answer says when there are more."""
BACKLOG_READ_ROWS: Final = 4_096
"""Rows of a backlog that are read at once to be counted."""

# --- replay ---------------------------------------------------------------------------------------
REPLAYS_MAX: Final = 1_000
"""Replays that are remembered; the oldest that have ended make room."""
REPLAYS_RUNNING_MAX: Final = 8
"""Replays under way at the same time; the others wait for their turn."""
REPLAY_PAGE_EVENTS: Final = 100
"""Events of a replay that are found and sent before its cursor is stored: what a restart repeats at most."""
REPLAY_RETRY_S: Final = 1.0
"""Pause of a replay before it retries a read or a write that failed."""
REPLAY_RATE_DEFAULT: Final = 100.0
REPLAY_RATE_MAX: Final = 10_000.0
"""Events a second that a replay sends."""

# --- retention ------------------------------------------------------------------------------------
BACKLOG_S_MAX: Final = 7 * 86_400.0
"""--backlog-hours: what a trigger or subscription has not taken keeps the log's files for so long, then its oldest
events are given up and counted."""
BACKLOG_BYTES_MAX: Final = 16 << 30
"""--backlog-mb, of each partition: the same by bytes, so that one dead subscriber does not fill everybody's disk."""
BACKLOG_NEAR: Final = 0.75
"""Share of either bound at which a condition and the log warn."""
BACKLOG_SWEEP_S: Final = 60.0
"""How often backlogs are compared with it."""
FLOOR_LOOKS_MAX: Final = 1_000
"""Looks for the retention floor before a re-partitioning; what is not found by then is kept."""
FLOOR_CHUNKS_MAX: Final = 4_096
"""Outbox chunks that one step of the search for the retention floor reads, some 0.3 s; the next step goes on there."""
RETENTION_EVERY_S: Final = 5.0
"""Time between two runs of retention: a listing of files and one query."""

# --- inspect --------------------------------------------------------------------------------------
WHY_CHUNKS_MAX: Final = 50_000
WHY_BYTES_MAX: Final = 256 << 20
WHY_SECONDS_MAX: Final = 5.0
"""One request that searches an event by its id: chunks, stored bytes and time; the next one goes on behind them."""
API_THREADS_MAX: Final = 40
"""Requests about objects that are at work at the same time, in each process that answers them."""
INSPECT_THREADS: Final = 4
"""Threads that answer `why`, `trace`, timelines, catalogues and lists of chunks, all of which read the log."""
INSPECTIONS_MAX: Final = 64
"""Such requests at the same time, those that wait for a thread included."""
FOLLOWED_BYTES_MAX: Final = 1 << 30
"""Stored bytes that are read again after a start, the newest first, for the catalogue and the search of events."""
FOLLOW_TURN_BYTES: Final = 4 << 20
"""Stored bytes that are read at once."""
FOLLOW_POLL_S: Final = 0.5
"""Between two looks at a log that is followed."""
FOLLOW_DUTY: Final = 0.25
"""Part of the time that following takes at most, of one core."""
FOLLOW_BEHIND_MAX: Final = 1 << 20
"""Offsets that a follower of a log is behind; one that would be further behind begins anew at the end."""
INDEXED_EVENTS_MAX: Final = 16 << 20
"""Events that are found by their id without reading the log, 64 MiB."""
CATALOGUE_BROKERS_MAX: Final = 1_024
"""Brokers whose flows are known, those that had events last; some 200 kB each at most."""
CATALOGUE_CEILINGS_MAX: Final = 16
"""Ceilings on brokers whose flows are counted each by itself, those that were asked for last; some 200 kB each at
most."""
CATALOGUE_CEILING_S_MAX: Final = 1.0
"""How long such a count reads the log on in one request, some 100,000 events; the next one goes on behind them."""
CATALOGUE_RATE_S: Final = 900
"""The time of which a rate in the catalogue is, whole minutes."""
CATALOGUE_SILENT_S: Final = 3_600
"""A flow that was silent for longer makes room for a new one."""
EVENT_TYPES_CREATE_S: Final = 2.0
"""Between two looks for flows that have no EventType yet."""
EVENT_TYPES_AGAIN_S: Final = 60.0
"""Between two looks whether the EventType of a flow with new events is still there."""
CATALOGUE_ITEMS_MAX: Final = 300
"""Types with their sources in one catalogue; a producer that makes up types cannot make it longer."""
CATALOGUE_SAMPLES_MAX: Final = 20
"""Events of each whose data is looked at, one of a chunk."""
CATALOGUE_SAMPLE_BYTES_MAX: Final = 16 << 10
"""Data that is looked at, and an example that is shown, at most."""
CATALOGUE_SAMPLE_S_MAX: Final = 0.05
"""Time for reading them."""
CATALOGUE_JUDGE_S_MAX: Final = 1.0
"""Time for asking filters whether they take the example; the first ones of a process are compiled in it."""
CATALOGUE_WANTED_MAX: Final = 20
"""Triggers and subscriptions that an item names; it counts the others."""
CATALOGUE_ATTRIBUTES_MAX: Final = 200
"""Extension attributes of a broker's events that a catalogue names, those that were seen last."""
UNSEEN_NAMES_MAX: Final = 100
"""Names in a filter, or in filters that are tried together, that no event has had and that are compared with those that
some have had, at some 1 ms each beside 300 types."""
MEANT_CHARS_MAX: Final = 100
"""Of a name that is compared with others for that; a longer one is taken as it is."""
CHUNKS_SHOWN_MAX: Final = 200
"""Chunks of the log in one answer, whose headers are read and no body."""
SCHEMA_DEPTH_MAX: Final = 8
SCHEMA_NODES_MAX: Final = 200
"""Depth and places that the schema of observed data knows: hostile data is as deep and wide as it likes."""
SCHEMA_NAME_CHARS_MAX: Final = 128
"""A member's name in such a schema; longer ones are left out."""
SCHEMA_ITEMS_MAX: Final = 20
"""Items of one list that are looked at."""
WHY_TRIGGERS_MAX: Final = 500
"""Triggers of one page of `why` for a whole broker: a filter's evaluation each, some 20 us."""
CLOCK_SLACK_S: Final = 3_600.0
"""What `why` and `trace` let the clock have been set back between an event and its row in the outbox: summer time."""
TREE_EVENTS_MAX: Final = 100
"""Events of one tree that a trace shows, of at most DESCENDANTS_MAX."""
TREE_BYTES_MAX: Final = 256 << 20
TREE_SECONDS_MAX: Final = 2.0
"""The search for an event's replies, forward from its root: stored bytes and time; most replies follow at once."""
TRACE_EVENTS_MAX: Final = 20
"""Events of one id that `headgate trace --all` shows."""

BACKTESTS_MAX: Final = 4
"""Requests of backtests that are answered at the same time, each for some 0.2 s of the reader's time; more get 429."""
BACKTEST_TRIGGERS_MAX: Final = 1_000
"""Triggers with which a backtest compares, the first by name: their filters go with every request to the reader."""
BACKTEST_EXAMPLES_MAX: Final = 3
"""Events of a backtest that are named of those that one of its two filters takes alone; the oldest ones."""
BACKTEST_HOURS_MAX: Final = 10_000
"""Hours that a backtest tells apart: more than a year; those beyond count in the total alone."""
BACKTEST_S_MAX: Final = 600.0
"""How long the command counts before it says what it has so far; a sample takes less."""

# --- observe --------------------------------------------------------------------------------------
METRICS_TRIGGERS_MAX: Final = 100
"""Triggers that metrics name, those with the longest backlog: no monitoring stores a label for each of TRIGGERS_MAX."""
NAMESPACES_COUNTED_MAX: Final = 100
"""Namespaces that metrics name; what is in further ones counts as `other`."""
BROKERS_COUNTED_MAX: Final = 100
"""Brokers that metrics name, likewise."""
RATE_WINDOW_S: Final = 60.0
"""What a rate is the mean of."""
HISTORY_POINT_S: Final = 10.0
"""Length of one point of the summary's history."""
HISTORY_POINTS_MAX: Final = 90
"""Points that are kept, in memory: a quarter of an hour."""
RECENT_ATTEMPTS_MAX: Final = 10
"""Attempts of each trigger that its dispatcher remembers in memory, for the trigger's page."""
RECENT_ANSWER_BYTES_MAX: Final = 200
"""What such an attempt keeps of the body of an answer that says no."""
SERVER_SILENT_S_MAX: Final = 3 * HISTORY_POINT_S
"""A server of a deployment that has not told its numbers for so long has parts that are not ready."""
SERVER_FORGOTTEN_S: Final = 600.0
"""A server that has not told its numbers for so long is no part of the deployment any more."""
SERVERS_MAX: Final = 1_000
"""Servers of a deployment whose numbers are added up."""
NUMBERS_KEPT_S: Final = 3_600
"""How long Kafka keeps what servers tell; nobody reads what is old."""
STOPPED_PART_S: Final = 600.0
"""Between two looks for filters that have stopped matching."""
STOPPED_MATCHED_PARTS: Final = 6
"""A filter matches regularly when it matched before each of so many looks in a row, an hour; else nothing is said."""
STOPPED_SILENT_PARTS: Final = 3
"""It has stopped when it matched nothing before each of so many looks: half an hour."""
STOPPED_EXPECTED_MIN: Final = 30
"""Matches that were to be expected since, by its share of its broker's events: with fewer, chance may be the reason."""
STOPPED_TOLD_PARTS: Final = 144
"""For how many looks a stop is told, a day: then it is how things are."""
METRICS_WRITE_S: Final = 1.0
"""How often a process writes its metrics to a file: `/metrics` may be this late."""
METRICS_STALE_S: Final = 10.0
"""Gauges of a process that has not written for so long are not shown."""

# --- store ----------------------------------------------------------------------------------------
CLUSTER_FILE_BYTES_MAX: Final = 256 << 10
"""The configuration file: written by people, some 50 lines."""
CLUSTER_OPTIONS_MAX: Final = 200
"""Options of one client or topic: librdkafka has some 170."""
SECRET_FILE_BYTES_MAX: Final = 64 << 10
"""A file with one password, key or token, or with the keys of Secrets."""
TOPIC_PARTITIONS_MAX: Final = 1_024
"""Partitions of one topic: each is a task of the matcher."""
TOPIC_REPLICATION_MAX: Final = 15
"""Copies of a partition: more than three are rare."""
KAFKA_RECORD_BYTES_MAX: Final = 3 << 20
"""One record of a topic of ours: an event of EVENT_BYTES_MAX, all of it extensions, which are there twice, and room."""
KAFKA_PRODUCER_STREAMS_MAX: Final = 128
"""Streams of numbered producers at one front on Kafka: each is a client of Kafka, with threads of its own."""
PRODUCER_BEGINS_MAX: Final = 5
"""How often a stream of a broker with a window tries to begin while owners still store something of the one before."""
KAFKA_PRODUCER_THREADS: Final = 16
"""Transactions of numbered producers that one front has open at the same time."""
KAFKA_RECORDS_WAITING_MAX: Final = 100_000
"""Records in a producer's own queue: above COMMIT_QUEUE_EVENTS_MAX, which bounds it first."""
KAFKA_APPEND_S_MAX: Final = 30.0
"""Until a record that Kafka does not acknowledge is given up: three times the silence after a broker's death."""
KAFKA_PROBE_S_MAX: Final = 3.0
"""A Kafka that does not answer a front's question for so long is away: events are refused at once until it answers."""
LEADER_CONNECT_S_MAX: Final = 3.0
"""Until a leader of the objects that cannot be connected to is taken for gone: a write is then refused with 503."""
LEADER_ANSWER_S_MAX: Final = 30.0
"""Until a leader that was asked is taken for silent: twice KAFKA_TRANSACTION_S_MAX."""
OBJECT_CACHE_LAG_S_MAX: Final = 5.0
"""How long an answer to a write that the leader made waits until this server has read it, too."""
OBJECT_LEAD_PAUSE_S: Final = 2.0
"""Between the loss of the lead of the objects and the next try of a process that is still elected: as an election that
has gone elsewhere is known by then."""
KAFKA_TRANSACTION_S_MAX: Final = 15.0
"""The same for a batch. As long, readers wait behind a batch of a front that died and was not started again."""
KAFKA_READ_EVENTS: Final = 1_000
"""Events of one page that is read."""
KAFKA_READ_S_MAX: Final = 15.0
"""Until a reader that Kafka does not answer gives up: longer than the silence after a broker's death."""
KAFKA_FETCH_BYTES_MAX: Final = 8 << 20
"""What a reader fetches ahead."""
KAFKA_FETCH_PAUSE_MS: Final = 10
"""A reader whose buffer is full looks again after so long. By itself the library waits a second, which is longer than
it takes to empty the buffer."""
KAFKA_SCAN_CONSUMERS_MAX: Final = 16
"""Consumers of a process that scans, of a thread a broker and KAFKA_FETCH_BYTES_MAX each. More scans take turns with
them; those that wait for new events need none."""
KAFKA_SCAN_WAIT_S: Final = 0.5
"""What a scan's turn waits for Kafka at most: so long other readers wait, too, where a broker is dead."""
KAFKA_WINDOW_EVENTS: Final = 256
KAFKA_WINDOW_EVENTS_MAX: Final = 8_192
"""Where a partition is read backward, offsets that are read at once: at first, and at most."""
KAFKA_WINDOWS_BYTES_MAX: Final = 32 << 20
"""Of events that are read so at once, all partitions together; one event of each may be more."""
SOURCE_RECORDS: Final = 500
"""Records of a foreign topic that are admitted in one transaction."""
SOURCE_BYTES_MAX: Final = 8 << 20
"""Bytes of their values and headers, and one record more."""
SOURCES_MAX: Final = 32
"""Sources of a deployment: each has a thread, a consumer and a producer in every process that admits records."""
SOURCE_TOPICS_MAX: Final = 64
"""Topics of one source."""
SOURCE_SESSION_S: Final = 6.0
"""A process that admits records and is silent for so long is taken for dead; another one goes on."""
SOURCE_RETRY_S: Final = 1.0
"""Pause before a source that failed is begun anew."""
OUTBOX_SOURCES_MAX: Final = 256
"""Partitions of the topic `events` of which a dispatcher keeps the state: as many as fit into a commit of Kafka."""
OUTBOX_STATE_BYTES_MAX: Final = 4_096
"""That state as text: the bound that Kafka has by default (`offset.metadata.max.bytes`)."""
OUTBOX_READ_RECORDS: Final = 1_000
"""Records that a dispatcher takes of the topic `outbox` at once."""
OUTBOX_READ_BYTES_MAX: Final = 8 << 20
"""The same in bytes; one record more may be there."""
OUTBOX_SESSION_S: Final = 6.0
"""A dispatcher that Kafka has not heard of for so long is dead: the others take its partitions over."""
OUTBOX_WAITING_BYTES_MAX: Final = 32 << 20
"""Memory of pages of the outbox in a dispatcher whose rows wait to be walked: over it, nothing more is read."""
OUTBOX_PARTITION_WAITING_BYTES_MAX: Final = 8 << 20
"""The same of one partition: over it, nothing more of this one is read until all that waits is walked."""
OUTBOX_SWEEP_RECORDS: Final = 20_000
"""Records that a search for the rows of lagging targets reads at once: then the target furthest behind is next."""
OUTBOX_AHEAD_ROWS: Final = 1_000
"""Rows that are read for a subscription at once: a search costs the same for one of them."""
OUTBOX_AHEAD_TARGETS_MAX: Final = 64
"""Subscriptions of an outbox partition whose rows are kept in memory so; those that were asked for last."""
OUTBOX_SWEPT_PLACES_MAX: Final = 64
"""Places where such searches answered somebody, at which the next ones can begin."""
OUTBOX_CHECKPOINTS_MAX: Final = 64
"""Places of an outbox partition at which such a search can begin; when there are more, every second one goes."""
OUTBOX_CHECKPOINTS_PAST: Final = 128
"""Older ones, from which `why` and `trace` look for rows that have ended; likewise."""
OUTBOX_CHECKPOINT_RECORDS: Final = 1_000
"""Offsets between two of them, at first."""
CHANGELOG_FLUSH_S: Final = 0.2
"""How old committed cursors may be on Kafka: deliveries ended since then are repeated after a crash."""
CHANGELOG_PROGRESS_S: Final = 1.0
"""How late the group commits where nothing was to be delivered: a new matcher run begins there."""
CHANGELOG_SEGMENT_BYTES: Final = 64 << 20
"""A file of the topic `changelog`: the newest one is never compacted, and who takes a partition over reads it."""
MOVED_EVENTS_AT_ONCE: Final = 5_000
MOVED_BYTES_AT_ONCE: Final = 16 << 20
"""Events that a move between a directory and Kafka writes before it waits for Kafka."""
MOVED_ROWS_AT_ONCE: Final = 2_000
"""Rows of objects of one transaction of such a move."""
MOVED_DEAD_LETTERS_AT_ONCE: Final = 32
"""Dead letters of one transaction of such a move: each may have an event of EVENT_BYTES_MAX."""
EXPORT_SETTLE_S_MAX: Final = 60.0
"""Until an export gives up waiting for transactions that killed servers have left open: they end by
KAFKA_TRANSACTION_S_MAX, and a broker looks for such every 10 s."""
REBALANCE_DRAIN_S_MAX: Final = 3.0
"""Attempts in flight to targets of a partition that goes to another dispatcher may end within this."""
REBALANCE_S_MAX: Final = 30.0
"""Until a partition that goes is given up: over it the dispatcher ends, as it cannot say what it still does."""
SERVER_PASS_S: Final = 86_400.0
"""How often a server writes anew by what others know it: Kafka forgets that after 7 days, by default."""
SERVER_PASS_CHECKS_MAX: Final = 16
"""Requests that wait until Kafka has said whether a server makes them: anybody may ask."""
WINDOW_TAKEOVERS_MAX: Final = 4
"""Partitions whose windows a front reads beside each other: reading is work for the processor."""
ELECTION_SESSION_S: Final = 6.0
"""A process that leads and is silent for so long leads no more: the shortest session that brokers admit by default."""
MATCHER_YIELD_S: Final = 15.0
"""So much later Spark starts in a matcher whose predecessor has died while another one takes part: that one takes over
first, with the machine and the cluster's cores to itself."""
ELECTION_LEAVE_S_MAX: Final = 2.0
"""A process that ends leaves its election within milliseconds. While Kafka waits for a candidate that has died it takes
5 s, which is all that the control process has for its stop: then it goes without."""
ELECTION_POLL_S_MAX: Final = 30.0
"""A process that leads and does not look at its election for so long leads no more, although its library lives."""
RUN_RECORD_BYTES_MAX: Final = 64 << 10
"""A record of the topic `runs`: the start of a run in OUTBOX_SOURCES_MAX partitions is a tenth of it."""
RUN_REASON_CHARACTERS_MAX: Final = 500
"""Why a run was refused, in a report."""
KAFKA_ADMIN_S_MAX: Final = 10.0
"""One question to the cluster: longer than the election of a new controller."""
OBJECT_RECORDS_BYTES_MAX: Final = 64 << 20
"""Rows of objects on their way to Kafka: what a larger change has more waits until some of them are acknowledged."""
OBJECT_TOMBSTONE_S_MIN: Final = 7 * 86_400
"""So long Kafka keeps the record that says that a row is gone (`delete.retention.ms`)."""
OBJECT_CACHE_AGE_S_MAX: Final = 86_400
"""A cache that was not read on for longer is built anew: far below OBJECT_TOMBSTONE_S_MIN, for clocks differ."""
OBJECT_COMPACTION_S_MIN: Final = 3_600
"""So long Kafka keeps every record of a row (`min.compaction.lag.ms`): longer than the building of a cache takes."""
OUTBOX_RECORD_TARGETS_MAX: Final = 1 << 16
"""Targets in one record of the outbox (320 KiB): they have room beside the largest event; more are further records."""
OUTBOX_WAITING_MAX: Final = 10_000
"""Records of one task that Kafka has not acknowledged: at two a millisecond, five seconds of a broker's silence."""
OUTBOX_PASSED_MS: Final = 100
"""How often a task tells its progress: a record for every partition of the outbox."""
RUN_WARM_EVENTS: Final = 256
"""Events of a partition that a run on Kafka which stands beside another one matches before those that may count."""
REHEARSAL_EVENTS: Final = 1_000
"""The newest events of a partition, which a matcher that stands by matches in a rehearsal; its matches do not count."""
REHEARSAL_BATCH_S: Final = 5
"""A batch of a rehearsal: the shortest one that Spark admits in real-time mode."""
REHEARSAL_BATCHES: Final = 2
"""Batches of a rehearsal: the first one may see the very first event at its end."""
REHEARSAL_S_MAX: Final = 90.0
"""A rehearsal that has not ended by then is broken off."""
REHEARSAL_PAUSE_S: Final = 60.0
"""From one rehearsal to the next, which changed filters are the reason for."""
REHEARSAL_LOOK_S: Final = 5.0
"""Before the first one: how often a matcher that stands by looks for events to rehearse with."""
RUN_TASKS_S_MAX: Final = 60.0
"""Until every task of a new run has begun: a cluster under load plans and sends a query within seconds."""

# --- server ---------------------------------------------------------------------------------------
FILTER_WORKERS_MAX: Final = 2
"""Processes of one front in which people try filters, made when they are needed: one for a hostile filter, one for the
others."""
FILTER_WORKER_START_S_MAX: Final = 60.0
"""How long such a process may take to start: a second, on a busy machine many times that."""
FILTER_WORKER_IDLE_S: Final = 300.0
"""How long it stays with nothing to do: it holds some 60 MB."""
FILTER_WORKER_MEMORY_BYTES_MAX: Final = 2 << 30
"""Its address space, of which it fills a small part: a filter that makes large values ends with the process."""
FILTER_RUN_S_MAX: Final = 5.0
"""Time for one request to try a filter; then its process is ended. No filter that is admitted takes a tenth of it."""
FILTER_RUNS_OF_USER_MAX: Final = 4
"""Requests of one user to try filters that one front has at the same time; they are answered one after the other."""
FILTER_RUNS_MAX: Final = 64
"""The same of all users: each holds its body of FILTER_TRIAL_BYTES_MAX at most."""
STATS_ANSWER_S_MAX: Final = 5.0
"""How long a dispatcher is asked for counters: then what it has is left out."""
PROCESSES_MAX: Final = 100
"""Processes of one server that metrics name."""
FRONTS_MAX: Final = 32
"""Fronts of a server: beyond it the disk is what ends first."""
CORES_A_FRONT: Final = 4
"""Cores for which a server has one front when it is not told: the matcher and the deliveries need the others."""
FRONT_LINK_BYTES_MAX: Final = 128 << 20
"""A message between two fronts: a chunk, with room for what one large submit brings."""
FRONT_LINK_S_MAX: Final = 30.0
"""How long a front waits for another one to store a chunk."""
BROKER_NEWS_S_MAX: Final = 5.0
"""How long the write of a broker waits for a front that does not answer."""
DISPATCHER_ANSWER_BYTES_MAX: Final = 1 << 26
"""One page of a dispatcher's dead letters or replays: a dead letter with its event is at most half of it."""
DISPATCHER_ANSWER_S_MAX: Final = 30.0
"""Until a dispatcher that was asked for them is taken for silent: twice KAFKA_TRANSACTION_S_MAX."""
PARTITION_OWNER_S_MAX: Final = 5.0
"""How long a question waits for the owner of an outbox partition that moves to another dispatcher."""
PROXY_PIECE_BYTES: Final = 1 << 16
"""Bytes of an answer that a proxy passes on at once."""
KEPT_CONNECTION_S: Final = 5
"""How long a connection between two processes of a server is kept open without a request."""
KEPT_CONNECTIONS_MAX: Final = 32
"""Connections to one process that are kept open without a request."""
GC_YOUNG_OBJECTS: Final = 500_000
"""Allocations between two looks of the collector for young cycles: the default of 700 costs a sixth of ingress, a
tenth of a delivery and a quarter of a table's build, and the full looks that follow stop a loop for as long as the
events of its cache take."""
GC_GROWTH_BYTES: Final = 64 << 20
"""By how much a process grows until the collector looks for young cycles nevertheless: they may hold much by little."""
GC_WHOLE_GROWTH_BYTES: Final = 512 << 20
"""By how much it grows, looks for young cycles passed over, until the collector looks at everything."""
THREAD_SWITCH_S: Final = 0.001
"""How long the front's event loop waits for each computing thread: forty times the default of 5 ms is noticeable."""
REPORT_S_MIN: Final = 1.0
"""Time between two reports of filter errors to the control store."""
REPORT_TEXT_CHARACTERS_MAX: Final = 1_000
"""A text in what was found of a target: errors may quote events."""
ROUTING_POLL_S: Final = 0.05
"""How often the control store is polled where the kernel does not tell of commits to it."""
STORE_APART_S: Final = 0.02
"""Between two looks at it of one who follows: who writes hundreds a second has nobody look at each."""
STORE_LOOKS_SHARE: Final = 0.2
"""Of the time, for these looks while somebody keeps writing: what a look takes, writers and events lack."""
STORE_APART_S_MAX: Final = 0.25
"""Between two of them, however long one takes."""
STORE_LOOK_S: Final = 1.0
"""How often it is polled otherwise."""
DISPATCHER_DRAIN_S_MAX: Final = 8.0
"""Attempts in flight may end within this on stop: below the share of DRAIN_S_MAX that the dispatcher has."""
MATCHER_STOP_S_MAX: Final = 7.0
"""A matcher that is told to stop leaves Spark as it is after this, as a killed one does: below its share of
DRAIN_S_MAX. Nothing breaks off a run that begins, and where Spark is busy that takes up to RUN_TASKS_S_MAX."""
HOSTS_KEPT_MAX: Final = 1_024
"""Values of the header Host that are known to mean this server and not checked again."""
TLS_FILE_BYTES_MAX: Final = 1 << 20
"""A file of certificates or a key: all CAs of the web have a quarter of it."""
TLS_WATCH_S: Final = 1.0
"""How often the files of certificate, key and CAs are looked at; they are read when they stay as they are for so
long."""
TLS_EXPIRY_WARNED_S: Final = 7 * 86_400.0
"""A certificate that ends sooner is warned about, once a day."""
TLS_EXPIRY_WARNINGS_S: Final = 86_400.0
"""Time between two such warnings."""
HEARTBEAT_S: Final = 1.0
"""How often a process shows that its event loop runs."""
SILENT_S_MAX: Final = 30.0
"""A process without a heartbeat for this long is not ready: a long GC pause or a slow start of a run is shorter."""
HUNG_S_MAX: Final = 180.0
"""A process without a heartbeat for this long, while the supervisor ran, is killed and started again."""
STACKS_S: Final = 0.5
"""A process that hangs gets so long to write the stacks of its threads before it is killed."""
RESTART_PAUSE_S_MIN: Final = 0.2
RESTART_PAUSE_S_MAX: Final = 10.0
"""Pause before a process that ended is started again: doubles while it keeps failing."""
FORK_S_MAX: Final = 60.0
"""How long the zygote may take to start a part, its own start included: a second, on a busy machine many times that."""
FORK_AT_STOP_S_MAX: Final = 3.0
"""The same when the server is told to stop: what is longer in coming is given up."""
DRAIN_S_MAX: Final = 30.0
"""SIGTERM to exit, all parts together: Kubernetes' default grace period."""

# --- auth -----------------------------------------------------------------------------------------
TOKEN_BYTES_MAX: Final = 16 << 10
"""A token that a client shows: an issuer that names 200 groups in one needs half of it."""
TOKENS_CACHED_MAX: Final = 10_000
"""Verified tokens that a front remembers, some 2 KiB each."""
TOKEN_CACHED_S_MAX: Final = 300.0
"""How long a verified token is not verified again."""
USER_BYTES_MAX: Final = 8 << 10
"""Name, groups and the rest of one user together: they go along as a header inside of the server."""
CLOCK_SKEW_S: Final = 30.0
"""How far the clocks of an issuer and of the server may be apart."""
AUTH_FILE_BYTES_MAX: Final = 16 << 20
"""A file of tokens, of issuers, or a kubeconfig."""
TOKEN_LOCK_S_MAX: Final = 10.0
"""How long a command that changes the file of tokens waits for another one."""
STATIC_TOKENS_MAX: Final = 100_000
"""Tokens in one file."""
AUTH_WATCH_S: Final = 1.0
"""How often the file of tokens is looked at; it is read when it stays as it is for so long."""
ISSUERS_MAX: Final = 64
"""Issuers of tokens: as many as Kubernetes takes."""
ISSUER_RULES_MAX: Final = 64
"""Rules of one kind, extra values or audiences of one issuer."""
ISSUER_ANSWER_BYTES_MAX: Final = 1 << 20
"""What an issuer answers: its discovery document or its keys."""
ISSUER_KEYS_MAX: Final = 128
"""Keys of one issuer."""
ISSUER_FETCH_S_MAX: Final = 10.0
"""How long the server waits for an issuer's answer."""
ISSUER_REFETCH_S_MIN: Final = 10.0
"""Time between two fetches of an issuer's keys for tokens whose key is not known."""
ISSUER_REFRESH_S: Final = 300.0
"""How often an issuer's keys are fetched anyway: one that it has withdrawn is refused from then on."""
AUTH_REFUSALS_MAX: Final = 20
"""Refused tokens of one client address, or /64 network, within AUTH_REFUSALS_S; then it waits until these are over."""
AUTH_REFUSALS_S: Final = 60.0
"""The time that AUTH_REFUSALS_MAX is about."""
AUTH_CLIENTS_MAX: Final = 10_000
"""Client addresses whose refusals are counted; the oldest one is forgotten for a new one."""
AUDIT_QUEUE_MAX: Final = 20_000
"""Lines for the audit log that are not written yet; more are dropped and counted."""
AUDIT_TEXT_CHARS_MAX: Final = 1_024
"""Path, user agent or message in a line of the audit log."""
AUDIT_PAUSE_S: Final = 0.1
"""How long lines for the audit log are collected before they are written."""
AUDIT_CLOSE_S_MAX: Final = 5.0
"""How long the end of a process waits for the audit log."""

# --- client ---------------------------------------------------------------------------------------
CLIENT_MESSAGE_BYTES_MAX: Final = 32 << 20
"""One message of a server: four times what it should ever send."""
CLIENT_UNACKED_EVENTS_MAX: Final = 10_000
"""Events of one producer that the server has not acknowledged; publishing more waits."""
CLIENT_UNACKED_BYTES_MAX: Final = 32 << 20
"""The same in bytes, unless one event is larger."""
CLIENT_REQUEST_EVENTS_MAX: Final = 1_000
"""Events of one request to publish: what the server takes."""
CLIENT_REQUEST_BYTES_MAX: Final = 1 << 20
"""The same in bytes, unless one event is larger."""
CLIENT_PRODUCERS_MAX: Final = 64
"""Brokers to which one client publishes without a producer of its own, each with a stream."""
CLIENT_WINDOW_DEFAULT: Final = 1_000
"""Events that a reader or consumer has from the server before it has handed them out."""
CLIENT_HELD_MAX: Final = 4_096
"""Events with one consumer that are remembered, to recognise them after a reconnect: as many as a server hands out."""
CLIENT_ACKS_MAX: Final = 1_000
"""Acknowledgements of one request; more go in the next one."""
CLIENT_CONNECT_S_MAX: Final = 10.0
"""How long a first connection is tried: a wrong address should fail soon."""
CLIENT_PATIENCE_S_DEFAULT: Final = 300.0
"""How long a lost connection is tried again: longer than a restart of the server."""
CLIENT_BACKOFF_S_MIN: Final = 0.1
CLIENT_BACKOFF_S_MAX: Final = 5.0
"""Longest pause before the next try: doubles with each, and a random part of it is waited."""
CLIENT_LASTED_S_MIN: Final = 5.0
"""A stream that ends sooner after its opening, without a message, counts as one that did not open."""
CLIENT_CLOSE_S_MAX: Final = 10.0
"""How long closing waits for pending acknowledgements."""
CLIENT_KEEPALIVE_S: Final = 20.0
"""How often a silent connection is pinged."""
MCP_CALLS_MAX: Final = 8
"""Calls of tools of one `headgate mcp` that are at work at the same time, each in a thread; more are refused."""
MCP_CALL_S_MAX: Final = 45.0
"""How long one call asks the server again for more: assistants give up after a minute."""
MCP_ANSWER_BYTES_MAX: Final = 48 << 10
"""One answer of a tool: some 12,000 tokens of a model, half of what common assistants take; what is cut is said."""
MCP_ANSWER_DEPTH_MAX: Final = 16
"""Levels of an answer that is too large in which lists are cut; what is deeper is shown as text."""
MCP_ITEMS_DEFAULT: Final = 20
MCP_ITEMS_MAX: Final = 200
"""Objects, events or triggers of one answer of a tool."""
MCP_TAIL_WAIT_S_MAX: Final = 30.0
"""How long a tool waits for a first event."""
MCP_TEXT_CHARS_MAX: Final = 4_096
"""A name, an id, a time or a position that a tool is given."""
MCP_BODY_BYTES_MAX: Final = 1 << 20
"""One request to `headgate mcp --http`: a filter, and room."""
MCP_CONNECTIONS_MAX: Final = 64
"""Connections to `headgate mcp --http`; more get 503."""
MCP_STOP_S_MAX: Final = 5
"""How long `headgate mcp --http` waits at its end for answers that are under way."""

# --- backup ---------------------------------------------------------------------------------------
BACKUP_FILES_MAX: Final = 100_000
"""Files of one backup, each open while it is taken: 25 TB in segments of 256 MiB."""
BACKUP_MANIFEST_BYTES_MAX: Final = 32 << 20
"""The manifest of a backup: 200 bytes a file, and room."""
BACKUP_PIECE_BYTES: Final = 4 << 20
"""What is read at once of a file that is copied."""
