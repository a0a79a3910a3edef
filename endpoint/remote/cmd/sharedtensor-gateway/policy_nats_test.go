package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rl"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// connectAs returns a connection to the gateway's NATS server with the token of a name.
func connectAs(t *testing.T, gw *remotetest.Gateway, name string) *nats.Conn {
	t.Helper()
	conn, err := natslink.Connect(gw.Addresses.NATS, nats.Token(matrixToken(name)))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// briefly calls f with a context that ends soon.
func briefly(t *testing.T, f func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return f(ctx)
}

// Members of a training run need only the scopes of their part in it.
func TestRunWithScopes(t *testing.T) { onServers(t, testRunWithScopes) }

func testRunWithScopes(t *testing.T, flagsOfNATS []string) {
	flags, _, _ := withPolicy(t, `
rules:
  - {tokens: [trainer], write: [rl.walk]}
  - {tokens: [worker], write: [rl.walk.worker]}
  - {tokens: [observer], read: [rl.walk]}
  - {tokens: [other], write: [rl.run]}
`, "trainer", "worker", "observer", "other")
	gw := remotetest.StartGateway(t, "off", append(flags, flagsOfNATS...)...)
	device, err := host.Open(host.Lazy())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()
	options := func(name string) rl.Options {
		return rl.Options{Run: "walk", Conn: connectAs(t, gw, name), Device: device, Name: name, Staleness: 1, Keep: 1}
	}

	var trainer *rl.Trainer
	remotetest.Eventually(t, func() error { // the gateway creates the run
		return briefly(t, func(ctx context.Context) (err error) {
			trainer, err = rl.NewTrainer(ctx, options("trainer"))
			return err
		})
	})
	defer trainer.Close()
	worker, err := rl.NewWorker(ctx, options("worker"))
	require.NoError(t, err)
	defer worker.Close()

	weights, err := tensor.Zeros(device, tensor.Float32, tensor.Shape{1 << 20}) // larger than a message
	require.NoError(t, err)
	sd := module.NewStateDict()
	require.NoError(t, sd.Set("w", weights))
	defer sd.Close()
	for version := range int64(4) { // older ones are removed
		published, err := trainer.Publish(ctx, sd)
		require.NoError(t, err)
		require.Equal(t, version, published)
		parameters, err := worker.Await(ctx, version-1)
		require.NoError(t, err)
		require.EqualValues(t, 4<<20, parameters.StateDict().Bytes())
		require.NoError(t, parameters.Close())
	}
	large := bytes.Repeat([]byte("step "), 1<<18)
	for _, body := range [][]byte{[]byte("small"), large} {
		require.NoError(t, worker.Add(ctx, bins.Value{Body: body}))
	}
	for received := 0; received < 2; {
		samples, err := trainer.Pull(ctx, 2)
		require.NoError(t, err)
		for _, s := range samples {
			require.Equal(t, "worker", s.Worker)
			require.NoError(t, s.Ack(ctx))
		}
		received += len(samples)
	}
	members, err := worker.Members(ctx)
	require.NoError(t, err)
	require.Len(t, members, 2)
	require.Equal(t, []string{"trainer", "worker"}, []string{members[0].Name, members[1].Name})

	for name, refused := range map[string]func(ctx context.Context) error{
		"a worker publishes": func(ctx context.Context) error {
			_, err := rl.NewTrainer(ctx, options("worker"))
			return err
		},
		"a worker takes data": func(ctx context.Context) error {
			_, err := bins.OpenQueue(ctx, connectAs(t, gw, "worker"), bins.QueueOptions{Options: bins.Options{Namespace: "rl_walk"}})
			return err
		},
		"an observer joins": func(ctx context.Context) error {
			_, err := rl.NewWorker(ctx, options("observer"))
			return err
		},
		"a trainer of another run joins": func(ctx context.Context) error {
			_, err := rl.NewTrainer(ctx, options("other"))
			return err
		},
	} {
		require.Error(t, briefly(t, refused), name)
	}
	store, err := bins.Open(ctx, connectAs(t, gw, "observer"), bins.Options{Namespace: "rl"})
	require.NoError(t, err)
	items, err := store.Peek(ctx, "walk.parameters")
	require.NoError(t, err)
	require.Len(t, items, 1)
	for _, name := range []string{"observer", "worker"} {
		store, err := bins.Open(ctx, connectAs(t, gw, name), bins.Options{Namespace: "rl"})
		require.NoError(t, err)
		require.Error(t, briefly(t, func(ctx context.Context) error {
			_, err := store.Put(ctx, "walk.parameters", bins.Value{Body: []byte("{}")})
			return err
		}), "%s replaces the parameters", name)
	}
}

// A gateway that is no leaf node of its cluster logs a warning about scopes.
func TestScopesNeedALeafNode(t *testing.T) {
	t.Parallel()
	flags, _, _ := withPolicy(t, "rules:\n  - {tokens: [a], read: [bin.x]}\n", "a")
	gw := remotetest.StartGateway(t, "off", append(flags, "--nats", "nats://127.0.0.1:1")...)
	require.Contains(t, gw.Log(), "read and write have no effect")
	flags, _, _ = withPolicy(t, "rules:\n  - {tokens: [a], call: ['*']}\n", "a")
	gw = remotetest.StartGateway(t, "off", append(flags, "--nats", "nats://127.0.0.1:1")...)
	require.NotContains(t, gw.Log(), "read and write have no effect")
}

// The quota of requests limits the items and requests of a client, which waits until its context ends. Other clients are
// not limited, and acknowledged items are stored once and in order.
func TestRequestsOverNATSHaveAQuota(t *testing.T) { onServers(t, testRequestsHaveAQuota) }

func testRequestsHaveAQuota(t *testing.T, flagsOfNATS []string) {
	flags, _, _ := withPolicy(t, `
rules:
  - {tokens: [limited], write: [bin.mine, queue.jobs], quota: {requests: 20}}
  - {tokens: [free], write: [bin.mine]}
`, "limited", "free")
	gw := remotetest.StartGateway(t, "off", append(flags, flagsOfNATS...)...)
	ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience)
	defer cancel()
	open := func(name string) (store *bins.Store, conn *nats.Conn) {
		conn = connectAs(t, gw, name)
		remotetest.Eventually(t, func() error {
			return briefly(t, func(ctx context.Context) (err error) {
				store, err = bins.Open(ctx, conn, bins.Options{Namespace: "mine"})
				return err
			})
		})
		return store, conn
	}
	limited, conn := open("limited")
	free, _ := open("free")

	const items = 50
	begin := time.Now()
	for i := range items {
		_, err := limited.Append(ctx, "a", bins.Value{Body: []byte{byte(i)}})
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, time.Since(begin), time.Second, "%d items, with 20 requests per second and a burst of as many", items)
	stored, err := free.Peek(ctx, "a")
	require.NoError(t, err)
	require.Len(t, stored, items)
	for i, item := range stored {
		require.Equal(t, []byte{byte(i)}, item.Body)
	}
	for range 4 * items {
		_, err := free.Append(ctx, "b", bins.Value{Body: []byte("x")})
		require.NoError(t, err)
	}

	// The rest of the quota, then a refusal that names it.
	var refusal error
	for refusal == nil {
		refusal = briefly(t, func(ctx context.Context) error {
			short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			_, err := limited.Append(short, "c", bins.Value{Body: []byte("x")})
			return err
		})
		if errors.Is(refusal, bins.ErrOutcomeUnknown) { // the answer was late
			refusal = nil
		}
	}
	require.ErrorIs(t, refusal, natslink.ErrQuota)
	require.ErrorContains(t, refusal, "limited may send 20 per second")

	queue, err := bins.OpenQueue(ctx, conn, bins.QueueOptions{Options: bins.Options{Namespace: "jobs"}})
	require.NoError(t, err)
	large := bytes.Repeat([]byte("large "), 4<<20) // its pieces are not counted
	_, err = queue.Push(ctx, "job", bins.Value{Body: large})
	require.NoError(t, err)
	jobs, err := queue.Pull(ctx, 1)
	require.NoError(t, err)
	require.True(t, bytes.Equal(large, jobs[0].Body))
	require.NoError(t, jobs[0].Ack(ctx))
}

// scopesPolicy is the policy of the gateway in the table of scopes. Each rule is a column.
const scopesPolicy = `
rules:
  - {tokens: [all],      write: [">"]}
  - {tokens: [part],     write: [bin.mine.a.*]}
  - {tokens: [partly],   read: [bin.mine.a.*]}
  - {tokens: [queue],    write: [queue.jobs]}
  - {tokens: [counter],  read: [queue.jobs]}
  - {tokens: [trainer],  write: [rl.walk]}
  - {tokens: [worker],   write: [rl.walk.worker]}
  - {tokens: [observer], read: [rl.walk]}
`

// Every operation on bins, queues and training runs has the outcome of the page for every kind of scope, also if the
// streams are those of a cluster.
func TestScopesMatrix(t *testing.T) { onServers(t, testScopesMatrix) }

func testScopesMatrix(t *testing.T, flagsOfNATS []string) {
	columns := []string{"all", "part", "partly", "queue", "counter", "trainer", "worker", "observer"}
	authority := remotetest.NewAuthority(t)
	cert, key := authority.Issue(t, t.TempDir(), "gateway", time.Now().Add(time.Hour))
	flags, _, _ := withPolicy(t, scopesPolicy, columns...)
	gw := remotetest.StartGateway(t, "off", slices.Concat(flags, []string{"--tls-cert", cert, "--tls-key", key}, flagsOfNATS)...)
	clients := map[string]*matrixClient{}
	for _, name := range columns {
		clients[name] = newMatrixClient(t, gw, matrixToken(name), authority.TLSConfig(t, "", ""))
	}
	conn, err := natslink.Connect(gw.Addresses.NATS, nats.Token(matrixToken("all")), nats.Secure(authority.TLSConfig(t, "", "")))
	require.NoError(t, err)
	defer conn.Close()
	remotetest.Eventually(t, func() error { // a leaf node connects to its cluster
		_, err := conn.Request("$JS.API.INFO", nil, time.Second)
		return err
	})
	require.NoError(t, rl.Create(t.Context(), rl.Options{Run: "walk", Conn: conn}))
	require.NoError(t, rl.Create(t.Context(), rl.Options{Run: "run", Conn: conn}))
	_, err = bins.Open(t.Context(), conn, bins.Options{Namespace: "mine"})
	require.NoError(t, err)
	_, err = bins.OpenQueue(t.Context(), conn, bins.QueueOptions{Options: bins.Options{Namespace: "jobs"}})
	require.NoError(t, err)
	rows := scopeRows()
	requireMatrix(t, "scopes", printMatrix(columns, rows, runMatrix(columns, clients, rows)))
}

func scopeRows() (rows []matrixRow) {
	add := func(name, subject, body string) {
		rows = append(rows, matrixRow{name: name, run: natsRequest(subject, body)})
	}
	for _, bin := range []string{"a.x", "b.x"} {
		add("add to bin.mine."+bin, "bin.mine."+bin, "item")
		add("read bin.mine."+bin, "$JS.API.DIRECT.GET.BINS_mine", `{"next_by_subj":"*.mine.`+bin+`","seq":1,"batch":9}`)
		add("newest of bin.mine."+bin, "$JS.API.STREAM.MSG.GET.BINS_mine", `{"last_by_subj":"bin.mine.`+bin+`"}`)
		add("take from bin.mine."+bin, "bin-take.mine."+bin, "")
	}
	add("read by number in bin.mine", "$JS.API.DIRECT.GET.BINS_mine", `{"seq":1}`)
	add("read the bodies of bin.mine", "$JS.API.DIRECT.GET.OBJ_BINS_mine", `{"next_by_subj":"$O.BINS_mine.C.>","seq":1}`)
	for _, queue := range []string{"jobs", "rl_walk", "rl_run"} {
		add("add to queue."+queue, "queue."+queue+".v0.x", "item")
		add("count queue."+queue, "$JS.API.STREAM.INFO.QUEUE_"+queue, "")
		add("read queue."+queue, "$JS.API.DIRECT.GET.QUEUE_"+queue, `{"seq":1}`)
		add("pullers of queue."+queue, "$JS.API.CONSUMER.CREATE.QUEUE_"+queue+".pullers",
			`{"stream_name":"QUEUE_`+queue+`","config":{"durable_name":"pullers","ack_policy":"explicit"}}`)
		add("purge queue."+queue, "$JS.API.STREAM.PURGE.QUEUE_"+queue, `{"filter":"queue.`+queue+`.none"}`)
	}
	for _, run := range []string{"walk", "run"} {
		add("publish parameters of "+run, "bin.rl."+run+".parameters", "{}")
		add("read parameters of "+run, "$JS.API.DIRECT.GET.BINS_rl", `{"next_by_subj":"*.rl.`+run+`.parameters","seq":1,"batch":9}`)
		add("store bytes of "+run, "$O.RL_"+run+"_parameters.C.x", "bytes")
		add("read bytes of "+run, "$JS.API.DIRECT.GET.OBJ_RL_"+run+"_parameters", `{"next_by_subj":"$O.RL_`+run+`_parameters.C.x","seq":1,"batch":9}`)
		add("remove bytes of "+run, "$JS.API.STREAM.PURGE.OBJ_RL_"+run+"_parameters", `{"filter":"$O.RL_`+run+`_parameters.C.none"}`)
		add("join "+run, "$KV.RL_"+run+".member", "{}")
		add("list members of "+run, "$JS.API.DIRECT.GET.KV_RL_"+run, `{"next_by_subj":"$KV.RL_`+run+`.>","seq":1,"batch":9}`)
		add("delete the stream of "+run, "$JS.API.STREAM.DELETE.NONE_"+run, "")
	}
	return rows
}
