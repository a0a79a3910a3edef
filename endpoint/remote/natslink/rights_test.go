package natslink_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// constants returns the constants of the server's source whose text has a prefix.
func constants(t *testing.T, prefix string) (list []string) {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "github.com/nats-io/nats-server/v2/server").Output()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if one, is := n.(*ast.BasicLit); is && one.Kind == token.STRING {
				if text, err := strconv.Unquote(one.Value); err == nil && strings.HasPrefix(text, prefix) && strings.IndexAny(text, " :\r") < 0 {
					list = append(list, text)
				}
			}
			return true
		})
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// rightsScopes has each kind of scope.
var rightsScopes = map[string]*rights.Scopes{
	"admin":    nil,
	"whole":    {Write: []string{"bin.mine"}},
	"reader":   {Read: []string{"bin.mine"}},
	"part":     {Write: []string{"bin.mine.a.*"}},
	"partly":   {Read: []string{"bin.mine.a.*"}},
	"queue":    {Write: []string{"queue.jobs"}},
	"counter":  {Read: []string{"queue.jobs"}},
	"trainer":  {Write: []string{"rl.walk"}},
	"worker":   {Write: []string{"rl.walk.worker"}},
	"observer": {Read: []string{"rl.walk"}},
}

var rightsColumns = []string{"whole", "reader", "part", "partly", "queue", "counter", "trainer", "worker", "observer"}

// rightsStreams creates the streams of the scopes.
func rightsStreams(t *testing.T, conn *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	for name, subjects := range map[string][]string{
		"BINS_mine": {"bin.mine.>", "bin-take.mine.>"}, "OBJ_BINS_mine": {"$O.BINS_mine.C.>", "$O.BINS_mine.M.>"},
		"BINS_rl": {"bin.rl.>", "bin-take.rl.>"}, "OBJ_BINS_rl": {"$O.BINS_rl.C.>", "$O.BINS_rl.M.>"},
		"OBJ_RL_walk_parameters": {"$O.RL_walk_parameters.C.>", "$O.RL_walk_parameters.M.>"}, "KV_RL_walk": {"$KV.RL_walk.>"},
		"QUEUE_jobs": {"queue.jobs.>"}, "OBJ_QUEUE_jobs": {"$O.QUEUE_jobs.C.>", "$O.QUEUE_jobs.M.>"},
		"QUEUE_rl_walk": {"queue.rl_walk.>"}, "OBJ_QUEUE_rl_walk": {"$O.QUEUE_rl_walk.C.>", "$O.QUEUE_rl_walk.M.>"},
	} {
		// The streams allow everything, so that only the gate refuses.
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: name, Subjects: subjects, Storage: jetstream.MemoryStorage, AllowRollup: true, AllowDirect: true, AllowMsgTTL: true,
			AllowMsgSchedules: true, AllowAtomicPublish: true, Duplicates: 2 * time.Minute,
		})
		require.NoError(t, err, name)
	}
	return js
}

// refusedBy reports whether the gate or the permissions refuse a message.
func refusedBy(t *testing.T, conn *nats.Conn, msg *nats.Msg) bool {
	t.Helper()
	violations := make(chan struct{}, 8)
	conn.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) { violations <- struct{}{} })
	inbox, err := conn.SubscribeSync(conn.NewInbox())
	require.NoError(t, err)
	defer inbox.Unsubscribe() //nolint:errcheck // the connection is closed next
	msg.Reply = inbox.Subject
	require.NoError(t, conn.PublishMsg(msg))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		select {
		case <-violations:
			return true
		default:
		}
		answer, err := inbox.NextMsg(5 * time.Millisecond)
		if err != nil {
			continue
		}
		// 10148: the consumer exists, and only a creation was forwarded
		return strings.Contains(string(answer.Data), `"code":403`) || strings.Contains(string(answer.Data), `"err_code":10148`) || answer.Header.Get("Status") == "403"
	}
	return false // the server received it and does not answer it
}

// rightsForms has the subjects of messages, with the columns that may publish there.
var rightsForms = []struct {
	subject string
	columns []string
	headers []string // that the server executes and clients need
}{
	{"bin.mine.a.x", []string{"whole", "part"}, []string{"Nats-Rollup", "Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence"}},
	{"bin.mine.b.x", []string{"whole"}, []string{"Nats-Rollup", "Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence"}},
	{"bin-take.mine.a.x", []string{"whole", "part"}, []string{"Nats-Rollup", "Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence", "Nats-TTL"}},
	{"$O.BINS_mine.C.x", []string{"part"}, []string{"Nats-Msg-Id"}},
	{"$O.BINS_mine.M.x", []string{"whole", "part"}, []string{"Nats-Rollup", "Nats-Msg-Id"}},
	{"queue.jobs.t", []string{"queue"}, []string{"Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence"}},
	{"queue.rl_walk.v0.x", []string{"trainer", "worker"}, []string{"Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence"}},
	{"bin.rl.walk.parameters", []string{"trainer"}, []string{"Nats-Rollup", "Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence"}},
	{"$O.QUEUE_rl_walk.C.x", []string{"worker"}, []string{"Nats-Msg-Id"}},
	{"$KV.RL_walk.m", []string{"trainer", "worker"}, []string{"Nats-Rollup", "Nats-Msg-Id", "Nats-Expected-Last-Subject-Sequence", "Nats-TTL"}},
}

// A scope admits a header that the server executes only if the table lists it for the scope, and only on subjects of the scope.
func TestHeadersOfScopes(t *testing.T) {
	t.Parallel()
	server := startScoped(t, rightsScopes)
	rightsStreams(t, connectScoped(t, server, "admin"))
	headers := constants(t, "Nats-")
	require.Subset(t, headers, []string{"Nats-Rollup", "Nats-Msg-Id", "Nats-Schedule", "Nats-Batch-Id", "Nats-Trace-Dest", "Nats-Incr"})
	headers = slices.DeleteFunc(headers, func(h string) bool { return h == "Nats-Request-Info" }) // the server sets it itself
	var table strings.Builder
	for _, column := range rightsColumns {
		conn := connectScoped(t, server, column)
		for _, form := range rightsForms {
			may := slices.Contains(form.columns, column)
			if !may && column == "whole" && strings.HasPrefix(form.subject, "$O.BINS_mine.C") {
				continue // may remove all bodies, so that its pieces do not pass the gate
			}
			if !may && (column == "trainer" && strings.HasPrefix(form.subject, "$O.QUEUE_rl_walk.C")) {
				continue
			}
			if !may {
				require.True(t, refusedBy(t, conn, &nats.Msg{Subject: form.subject}), "%s publishes to %s", column, form.subject)
				continue
			}
			var admitted []string
			for _, header := range headers {
				for _, name := range []string{header, strings.ToLower(header)} {
					value := map[string]string{"Nats-Rollup": "sub", "Nats-TTL": "5m"}[name]
					if value == "" {
						value = "1"
					}
					if !refusedBy(t, conn, &nats.Msg{Subject: form.subject, Header: nats.Header{name: {value}}, Data: []byte("x")}) {
						admitted = append(admitted, name)
					}
				}
			}
			require.ElementsMatch(t, form.headers, admitted, "%s to %s", column, form.subject)
			fmt.Fprintf(&table, "%-9s %-24s %s\n", column, form.subject, strings.Join(admitted, " "))
			for _, header := range []nats.Header{
				{"Nats-Rollup": {"all"}}, {"Nats-Rollup": {"sub", "all"}}, {"nats-rollup": {"all"}},
			} {
				require.True(t, refusedBy(t, conn, &nats.Msg{Subject: form.subject, Header: header}), "%s to %s with %q", column, form.subject, header)
			}
		}
		conn.Close()
	}
	t.Log("headers that the gate passes\n" + table.String())
}

// A message that replaces others leaves the messages of other subjects. A message id of one client does not make a message
// of another client a duplicate.
func TestMessagesOfOthersRemain(t *testing.T) {
	t.Parallel()
	server := startScoped(t, rightsScopes)
	admin := rightsStreams(t, connectScoped(t, server, "admin"))
	of := func(name string) jetstream.JetStream {
		js, err := jetstream.New(connectScoped(t, server, name))
		require.NoError(t, err)
		return js
	}
	publish := func(js jetstream.JetStream, subject string, header nats.Header, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: header, Data: []byte("x")}, append(opts, jetstream.WithRetryAttempts(1))...)
	}
	for _, subject := range []string{"bin.mine.b.x", "queue.rl_walk.v0.other", "bin.rl.run.parameters", "$O.BINS_mine.C.other", "$KV.RL_walk.other"} {
		_, err := publish(admin, subject, nil)
		require.NoError(t, err)
	}
	for name, subject := range map[string]string{"part": "bin.mine.a.x", "worker": "queue.rl_walk.v0.mine", "trainer": "bin.rl.walk.parameters"} {
		js := of(name)
		_, err := publish(js, subject, nats.Header{"Nats-Rollup": {"all"}})
		require.Error(t, err)
		ack, err := publish(js, subject, nil, jetstream.WithMsgID("id-of-"+subject))
		require.NoError(t, err)
		require.False(t, ack.Duplicate)
		ack, err = publish(js, subject, nil, jetstream.WithMsgID("id-of-"+subject))
		require.NoError(t, err)
		require.True(t, ack.Duplicate, "the same client, the same id")
		ack, err = publish(admin, subject, nil, jetstream.WithMsgID("id-of-"+subject))
		require.NoError(t, err)
		require.False(t, ack.Duplicate, "another client, the same id")
	}
	js := of("worker")
	_, err := publish(js, "$KV.RL_walk.mine", nats.Header{"Nats-Rollup": {"all"}})
	require.Error(t, err)
	_, err = publish(of("part"), "$O.BINS_mine.C.mine", nats.Header{"Nats-Rollup": {"all"}})
	require.Error(t, err)
	for stream, subject := range map[string]string{
		"BINS_mine": "bin.mine.b.x", "QUEUE_rl_walk": "queue.rl_walk.v0.other", "BINS_rl": "bin.rl.run.parameters", "OBJ_BINS_mine": "$O.BINS_mine.C.other", "KV_RL_walk": "$KV.RL_walk.other",
	} {
		s, err := admin.Stream(t.Context(), stream)
		require.NoError(t, err)
		_, err = s.GetLastMsgForSubject(t.Context(), subject)
		require.NoError(t, err, subject)
	}
}

// rightsRequests are requests of JetStream that a scope may make in addition to the table of the gateway. All others are
// refused.
var rightsRequests = []struct {
	subject, body string
	columns       []string
}{
	{"$JS.API.STREAM.INFO.BINS_mine", ``, []string{"whole", "reader", "part", "partly"}},
	{"$JS.API.STREAM.INFO.BINS_mine", `{"subjects_filter":">"}`, []string{"whole", "reader"}},
	{"$JS.API.STREAM.INFO.BINS_mine", `{"subjects_filter":"bin.mine.a.*"}`, []string{"whole", "reader", "part", "partly"}},
	{"$JS.API.STREAM.INFO.BINS_mine", `{"deleted_details":true}`, []string{"whole", "reader"}},
	{"$JS.API.STREAM.INFO.OBJ_BINS_mine", `{"subjects_filter":">"}`, []string{"whole", "reader"}},
	{"$JS.API.DIRECT.GET.BINS_mine.bin.mine.a.x", ``, []string{"whole", "reader", "part", "partly"}},
	{"$JS.API.DIRECT.GET.BINS_mine.bin.mine.a.>", ``, []string{"whole", "reader"}},
	{"$JS.API.DIRECT.GET.BINS_mine.bin.mine.a.*", ``, []string{"whole", "reader"}},
	{"$JS.API.DIRECT.GET.BINS_mine.>", ``, []string{"whole", "reader"}},
	{"$JS.API.DIRECT.GET.OBJ_BINS_mine.$O.BINS_mine.M.>", ``, []string{"whole", "reader"}},
	{"$JS.API.DIRECT.GET.OBJ_BINS_mine.$O.BINS_mine.M.*", ``, []string{"whole", "reader"}},
	{"$JS.API.DIRECT.GET.OBJ_BINS_mine.$O.BINS_mine.M.bmFtZQ==", ``, []string{"whole", "reader", "part"}},
	{"$JS.API.CONSUMER.INFO.BINS_mine.theirs", ``, nil},
	{"$JS.API.CONSUMER.DELETE.BINS_mine.theirs", ``, nil},
	{"$JS.API.CONSUMER.MSG.NEXT.BINS_mine.theirs", `{"batch":1,"no_wait":true}`, nil},
	{"$JS.API.CONSUMER.CREATE.BINS_mine.d.bin.mine.a.x", `{"stream_name":"BINS_mine","config":{"durable_name":"d","name":"d","filter_subject":"bin.mine.a.x","ack_policy":"none"}}`, nil},
	{"$JS.API.CONSUMER.CREATE.BINS_mine.e.bin.mine.a.x", `{"stream_name":"BINS_mine","config":{"name":"e","filter_subject":"bin.mine.a.x","ack_policy":"none","sample_freq":"100"}}`, nil},
	{"$JS.API.CONSUMER.CREATE.BINS_mine.theirs.bin.mine.a.x", `{"stream_name":"BINS_mine","action":"update","config":{"name":"theirs","filter_subject":"bin.mine.a.x","ack_policy":"none"}}`, nil},
	{"$JS.API.CONSUMER.MSG.NEXT.QUEUE_jobs.pullers", `{"batch":1,"no_wait":true}`, []string{"queue"}},
	{"$JS.API.CONSUMER.DELETE.QUEUE_jobs.pullers", ``, nil},
	{"$JS.API.STREAM.PURGE.OBJ_BINS_mine", `{"filter":"$O.BINS_mine.C.>"}`, []string{"whole"}},
	{"sharedtensor-pull.x.BINS_mine.theirs", ``, nil},
}

// Each request of JetStream is refused unless the table admits it, and consumers of other clients cannot be named.
func TestRequestsOfScopes(t *testing.T) {
	t.Parallel()
	server := startScoped(t, rightsScopes)
	admin := rightsStreams(t, connectScoped(t, server, "admin"))
	stream, err := admin.Stream(t.Context(), "BINS_mine")
	require.NoError(t, err)
	_, err = stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "theirs", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	jobs, err := admin.Stream(t.Context(), "QUEUE_jobs")
	require.NoError(t, err)
	_, err = jobs.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "pullers", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	_, err = admin.Publish(t.Context(), "bin.mine.a.x", []byte("x"))
	require.NoError(t, err)
	for _, column := range rightsColumns {
		conn := connectScoped(t, server, column)
		for _, request := range rightsRequests {
			refused := refusedBy(t, conn, &nats.Msg{Subject: request.subject, Data: []byte(request.body)})
			require.Equal(t, !slices.Contains(request.columns, column), refused, "%s: %s %s", column, request.subject, request.body)
		}
		// Each verb of JetStream on a stream of the scope, as the server's source lists them.
		for _, verb := range constants(t, "$JS.API.") {
			if strings.Contains(verb, "%") || !strings.Contains(verb, "*") && verb != "$JS.API.STREAM.LIST" && verb != "$JS.API.STREAM.NAMES" {
				continue
			}
			switch strings.TrimPrefix(verb, "$JS.API.") {
			case "STREAM.INFO.*", "STREAM.MSG.GET.*", "STREAM.PURGE.*", "CONSUMER.CREATE.*.>", "CONSUMER.INFO.*.*", "CONSUMER.DELETE.*.*":
				continue // the rows above and the table of the gateway have them
			}
			if strings.HasPrefix(verb, "$JS.API.DIRECT.GET") {
				continue
			}
			subject := strings.Replace(strings.Replace(strings.Replace(verb, "*", "BINS_mine", 1), "*", "theirs", 1), ">", "x", 1)
			require.True(t, refusedBy(t, conn, &nats.Msg{Subject: subject, Data: []byte("{}")}), "%s: %s", column, subject)
		}
		conn.Close()
	}
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Positive(t, info.State.Consumers)
}

// One client has a bounded number of consumers, and deleted consumers do not count.
func TestConsumersAreBounded(t *testing.T) {
	t.Parallel()
	server := startScoped(t, rightsScopes)
	rightsStreams(t, connectScoped(t, server, "admin"))
	conn := connectScoped(t, server, "part")
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "BINS_mine")
	require.NoError(t, err)
	create := func(name string) error {
		_, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
			Name: name, FilterSubject: "bin.mine.a.x", AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Minute,
		})
		return err
	}
	created := 0
	for ; created < 2000; created++ {
		if err = create(fmt.Sprint("c", created)); err != nil {
			break
		}
	}
	require.ErrorContains(t, err, "consumers")
	require.Less(t, created, 500)
	require.NoError(t, stream.DeleteConsumer(t.Context(), "c7"))
	require.NoError(t, create("again"))
	other, err := jetstream.New(connectScoped(t, server, "whole"))
	require.NoError(t, err)
	theirs, err := other.Stream(t.Context(), "BINS_mine")
	require.NoError(t, err)
	_, err = theirs.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Name: "other", AckPolicy: jetstream.AckNonePolicy})
	require.NoError(t, err)
}
