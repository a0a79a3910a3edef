package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/jsonrpc"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

var update = flag.Bool("update", false, "write the matrix of rights to the page")

// rightsPage contains the matrix between two markers.
const rightsPage = "../../rights.md"

// matrixPolicy is the policy of the gateway in the matrix. Each rule is a column.
const matrixPolicy = `
rules:
  - {tokens: [all],      info: true, list: ["*"], acquire: ["*"], publish: ["*"], withdraw: ["*"], call: ["*"], metrics: true, control: true, write: [">"]}
  - {tokens: [look],     info: true, list: ["*"], acquire: ["*"], publish: ["*"], withdraw: ["*"], call: ["*"], metrics: true, control: true, write: [bin.mine]}
  - {tokens: [info],     info: true}
  - {tokens: [list],     list: [mine]}
  - {tokens: [acquire],  acquire: [mine]}
  - {tokens: [publish],  publish: [mine]}
  - {tokens: [withdraw], withdraw: [mine]}
  - {tokens: [call],     call: [identity]}
  - {certificates: [worker], call: [identity]}
  - {tokens: [metrics],  metrics: true}
  - {tokens: [control],  control: true, call: [identity]}
  - {tokens: [read],     read: [bin.mine]}
  - {tokens: [write],    write: [bin.mine]}
`

// matrixTokens are the columns of the matrix that have a token. cert is a client certificate, none has neither, wrong has
// a token that the gateway does not know, and norule one that no rule matches. look is a read-only token.
var matrixTokens = []string{"all", "look", "info", "list", "acquire", "publish", "withdraw", "call", "metrics", "control", "read", "write", "norule"}

// Outcomes of an operation for a client.
const (
	admitted        = "yes"
	refused         = "-"
	unauthenticated = "401"
)

// matrixClient is a client of the gateway in the matrix.
type matrixClient struct {
	t     *testing.T
	gw    *remotetest.Gateway
	token string
	tls   *tls.Config
	id    rights.Identity
	http  *http.Client
	grpc  *grpc.ClientConn
}

func newMatrixClient(t *testing.T, gw *remotetest.Gateway, token string, config *tls.Config) *matrixClient {
	c := &matrixClient{t: t, gw: gw, token: token, tls: config, http: &http.Client{Transport: &http.Transport{TLSClientConfig: config}}}
	t.Cleanup(c.http.CloseIdleConnections)
	var err error
	c.grpc, err = grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.grpc.Close() })
	return c
}

// overHTTP returns the outcome of an HTTP request. Every status that is not about rights counts as admitted.
func (c *matrixClient) overHTTP(method, path, contentType string, body io.Reader) (outcome, answer string) {
	ctx, cancel := context.WithTimeout(c.t.Context(), remotetest.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "https://"+c.gw.Addresses.HTTP+path, body)
	require.NoError(c.t, err)
	request.Header.Set("Content-Type", contentType)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	require.NoError(c.t, err)
	defer response.Body.Close()
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		return admitted, ""
	}
	text, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	switch {
	case response.StatusCode == http.StatusUnauthorized:
		return unauthenticated, string(text)
	case response.StatusCode == http.StatusForbidden:
		return refused, string(text)
	case response.StatusCode == http.StatusMethodNotAllowed, response.StatusCode >= 500 && response.StatusCode != http.StatusNotImplemented:
		require.Fail(c.t, "unexpected status", "%s %s: %s %s", method, path, response.Status, text)
	}
	return admitted, string(text)
}

// overRPC returns the outcome of a JSON-RPC method.
func (c *matrixClient) overRPC(method, params string) string {
	outcome, answer := c.overHTTP(http.MethodPost, "/jsonrpc", "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
	if outcome != admitted {
		return outcome
	}
	var out struct {
		Error *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	require.NoError(c.t, json.Unmarshal([]byte(answer), &out), "%s", answer)
	if out.Error != nil && out.Error.Code == -32007 && !strings.Contains(out.Error.Message, "--publish-root") {
		return refused
	}
	return admitted
}

// overGRPC returns the outcome of a call with the given message.
func (c *matrixClient) overGRPC(method string, message []byte) string {
	ctx, cancel := context.WithTimeout(c.t.Context(), remotetest.Patience)
	defer cancel()
	if c.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
	}
	call, err := c.grpc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodec(rawCodec{}))
	require.NoError(c.t, err)
	_ = call.SendMsg(message) // the status reports a refusal
	_ = call.CloseSend()
	for {
		var in []byte
		if err = call.RecvMsg(&in); err != nil {
			break
		}
		if strings.HasSuffix(method, "/Watch") {
			return admitted
		}
		if bytes.Contains(in, []byte("not allowed by the gateway's policy")) || bytes.Contains(in, []byte("read-only: changes are refused")) {
			return refused // streams of the Open Inference Protocol and of kpu report errors in messages
		}
	}
	switch code := status.Code(err); code {
	case codes.PermissionDenied:
		return refused
	case codes.Unauthenticated:
		return unauthenticated
	case codes.Internal, codes.Unavailable, codes.DeadlineExceeded:
		require.Fail(c.t, "unexpected status", "%s: %v", method, err)
	}
	return admitted
}

// rawCodec passes messages in raw bytes.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (rawCodec) Name() string                       { return "proto" }

// matrixRow is one operation.
type matrixRow struct {
	// name is shown in the matrix, and route is the route or the method that it covers.
	name, route string
	run         func(c *matrixClient) string
	// broken runs the operation with the same name and a body that never arrives or cannot be parsed.
	broken func(c *matrixClient) string
}

func httpRow(route, path, body string) matrixRow {
	method, _, _ := strings.Cut(route, " ")
	if method == route {
		method = http.MethodPost
	}
	return matrixRow{method + " " + path, route, func(c *matrixClient) string {
		outcome, _ := c.overHTTP(method, path, "application/json", strings.NewReader(body))
		return outcome
	}, func(c *matrixClient) string {
		unsent, sender := io.Pipe()
		defer sender.Close()
		outcome, _ := c.overHTTP(method, path, "application/json", unsent)
		return outcome
	}}
}

func rpcRow(method, params string) matrixRow {
	name := method
	if params != "{}" {
		name += " " + params
	}
	row := matrixRow{name: "jsonrpc " + name, route: "jsonrpc " + method, run: func(c *matrixClient) string { return c.overRPC(method, params) }}
	var named struct{ Name string }
	if _ = json.Unmarshal([]byte(params), &named); named.Name != "" && !strings.Contains(params, `"model":`) { // the right to that model is not about the name
		row.broken = func(c *matrixClient) string { return c.overRPC(method, `{"name":"`+named.Name+`","surplus":[1]}`) }
	}
	return row
}

func grpcRow(method, about string, message proto.Message) matrixRow {
	encoded, err := proto.Marshal(message)
	if err != nil {
		panic(err) // unreachable: the messages of the matrix are valid
	}
	name := strings.TrimPrefix(method, "/")
	row := matrixRow{name: strings.TrimSpace("grpc " + name[strings.LastIndexByte(name[:strings.IndexByte(name, '/')], '.')+1:] + " " + about), route: "grpc " + method,
		run: func(c *matrixClient) string { return c.overGRPC(method, encoded) }}
	row.broken = func(c *matrixClient) string {
		for _, checked := range []string{"/ModelInfer", "/ModelStreamInfer", "/Compute"} { // their large messages are checked by name
			if strings.HasSuffix(method, checked) {
				return c.overGRPC(method, append(bytes.Clone(encoded), 0xff))
			}
		}
		if rights.Calls[method].Allow(c.id, "") == nil {
			return refused // the right depends on the name in a small message
		}
		return c.overGRPC(method, []byte{0xff})
	}
	return row
}

// Every operation of every protocol has the outcome of the page for every kind of token.
func TestRightsMatrix(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority := remotetest.NewAuthority(t)
	cert, key := authority.Issue(t, t.TempDir(), "gateway", time.Now().Add(time.Hour))
	worker, workerKey := authority.Issue(t, t.TempDir(), "worker", time.Now().Add(time.Hour))
	tokens, policy, auditLog := filepath.Join(dir, "tokens"), filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.jsonl")
	var lines strings.Builder
	for _, name := range matrixTokens {
		fmt.Fprintln(&lines, matrixToken(name), name, map[bool]string{true: "read-only"}[name == "look"])
	}
	require.NoError(t, os.WriteFile(tokens, []byte(lines.String()), 0o600))
	require.NoError(t, os.WriteFile(policy, []byte(matrixPolicy), 0o600))
	owner := remotetest.StartOwner(t, "--model", "mine=4096", "--model", "other=4096")
	gw := remotetest.StartGateway(t, owner.Socket, "--tls-cert", cert, "--tls-key", key, "--client-ca", authority.File, "--token-file", tokens,
		"--policy", policy, "--audit", auditLog, "--nats", "embedded", "--nats-listen", "127.0.0.1:0", "--allow-client-shm")

	columns := []string{"none", "wrong"}
	clients := map[string]*matrixClient{
		"none":  newMatrixClient(t, gw, "", authority.TLSConfig(t, "", "")),
		"wrong": newMatrixClient(t, gw, "0123456789abcdef-unknown", authority.TLSConfig(t, "", "")),
		"cert":  newMatrixClient(t, gw, "", authority.TLSConfig(t, worker, workerKey)),
	}
	for _, name := range matrixTokens {
		clients[name] = newMatrixClient(t, gw, matrixToken(name), authority.TLSConfig(t, "", ""))
		columns = append(columns, name)
	}
	columns = append(columns, "cert")
	prepareBins(t, clients["all"])
	remotetest.Eventually(t, func() error {
		if _, answer := clients["all"].overHTTP("GET", "/v1/models/mine", "", nil); !strings.Contains(answer, `"mine"`) {
			return fmt.Errorf("no owner yet: %s", answer)
		}
		return nil
	})

	rows := matrixRows(submitTask(t, clients["all"]))
	requireAllRoutes(t, gw, rows)
	outcomes := runMatrix(columns, clients, rows)
	requireMatrix(t, "matrix", printMatrix(columns, rows, outcomes))
	requireRightsBeforeBodies(t, policy, clients, rows, outcomes)
	requireAuditNames(t, auditLog)
	for i, row := range rows {
		if changesOwner(row) {
			require.Contains(t, []string{refused}, outcomes[i]["look"], "a read-only token may %s", row.name)
		}
	}
}

// requireRightsBeforeBodies checks that each refused operation is refused in the same way if its body never arrives or cannot be
// parsed.
func requireRightsBeforeBodies(t *testing.T, policyFile string, clients map[string]*matrixClient, rows []matrixRow, outcomes []map[string]string) {
	t.Helper()
	policy, err := rights.Read(policyFile)
	require.NoError(t, err)
	for name, c := range clients {
		c.id, _ = policy.Apply(rights.Identity{Name: name, Method: rights.MethodToken, ReadOnly: name == "look"}) // no rule matches some
	}
	clients["cert"].id, err = policy.Apply(rights.Identity{Name: "worker", Method: rights.MethodCertificate})
	require.NoError(t, err)
	for i, row := range rows {
		if row.broken == nil || strings.Contains(row.name, "(shared memory)") { // the region is in the body
			continue
		}
		var running sync.WaitGroup
		for column, outcome := range outcomes[i] {
			if outcome == refused {
				running.Go(func() { assert.Equal(t, refused, row.broken(clients[column]), "%s of %s", row.name, column) })
			}
		}
		running.Wait()
	}
}

// runMatrix returns the outcomes of each row by column.
func runMatrix(columns []string, clients map[string]*matrixClient, rows []matrixRow) []map[string]string {
	outcomes := make([]map[string]string, len(rows))
	for i, row := range rows {
		outcomes[i] = map[string]string{}
		var mu sync.Mutex
		var running sync.WaitGroup
		for _, column := range columns {
			running.Go(func() {
				outcome := row.run(clients[column])
				mu.Lock()
				defer mu.Unlock()
				outcomes[i][column] = outcome
			})
		}
		running.Wait()
	}
	return outcomes
}

func matrixToken(name string) string { return "0123456789abcdef-" + name }

// changesOwner reports whether a row is a change, which read-only tokens may not make.
func changesOwner(row matrixRow) bool {
	for _, word := range []string{"PUT /v1/models", "DELETE /v1/models", "/load", "/unload", "/register", "/unregister", "publish_from", "withdraw", "invalidate", "TensorStream/Put", "ReceiveTensors",
		"RepositoryModelLoad", "RepositoryModelUnload", "MemoryRegister", "MemoryUnregister", "nats publish", "nats take", "nats purge", "nats create", "nats answer"} {
		if strings.Contains(row.name, word) {
			return true
		}
	}
	return false
}

// requireAllRoutes fails if a route, a method or a JSON-RPC method has no row.
func requireAllRoutes(t *testing.T, gw *remotetest.Gateway, rows []matrixRow) {
	t.Helper()
	var missing []string
	has := func(route string) bool {
		return slices.ContainsFunc(rows, func(r matrixRow) bool { return r.route == route })
	}
	for _, route := range gw.Routes {
		if !has(route) && route != "/jsonrpc" {
			missing = append(missing, route)
		}
	}
	for _, method := range jsonrpc.Methods() {
		if !has("jsonrpc " + method) {
			missing = append(missing, "jsonrpc "+method)
		}
	}
	require.Empty(t, missing, "operations without a row in the matrix")
}

// printMatrix returns the matrix as a table of Markdown.
func printMatrix(columns []string, rows []matrixRow, outcomes []map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| operation | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for i, row := range rows {
		fmt.Fprintf(&b, "| `%s` |", strings.ReplaceAll(row.name, "|", `\|`))
		for _, column := range columns {
			fmt.Fprintf(&b, " %s |", outcomes[i][column])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// pageLock is held while a matrix is compared or written.
var pageLock sync.Mutex

// requireMatrix compares the matrix of a name with the page, or writes it with -update.
func requireMatrix(t *testing.T, name, matrix string) {
	t.Helper()
	pageLock.Lock()
	defer pageLock.Unlock()
	begin, end := "<!-- "+name+" -->\n", "<!-- end of the "+name+" -->"
	page, err := os.ReadFile(rightsPage)
	require.NoError(t, err)
	head, rest, found := strings.Cut(string(page), begin)
	require.True(t, found)
	before, tail, found := strings.Cut(rest, end)
	require.True(t, found)
	if *update {
		require.NoError(t, os.WriteFile(rightsPage, []byte(head+begin+matrix+end+tail), 0o644))
		return
	}
	require.Equal(t, before, matrix, "the matrix on the page; -update writes it after a deliberate change")
}

// requireAuditNames checks that each line of the audit log has the name of a token that may make changes.
func requireAuditNames(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	changes := map[string]map[string]bool{}
	for line := range strings.Lines(string(text)) {
		var entry struct{ Change, Identity string }
		require.NoError(t, json.Unmarshal([]byte(line), &entry), "%s", line)
		name := strings.TrimPrefix(entry.Identity, "token:")
		require.Contains(t, []string{"all", "look", "publish", "withdraw", "call", "control", "worker", "read", "write"}, name, "%s", line)
		if changes[entry.Change] == nil {
			changes[entry.Change] = map[string]bool{}
		}
		changes[entry.Change][name] = true
	}
	for change, by := range map[string]string{
		"publish": "publish", "load": "control", "unload": "all", "invalidate": "call", "connect": "read", "purge": "write", "create stream": "all",
	} {
		require.True(t, changes[change][by], "the audit log has no %s by %s:\n%s", change, by, text)
	}
	require.NotContains(t, changes["publish"], "look")
	require.Subset(t, []string{"all", "withdraw"}, slices.Collect(maps.Keys(changes["withdraw"])), "one of both withdraws the model")
	require.NotEmpty(t, changes["withdraw"])
}

// submitTask starts a task of a function that only some tokens may call.
func submitTask(t *testing.T, c *matrixClient) string {
	t.Helper()
	_, answer := c.overHTTP(http.MethodPost, "/jsonrpc", "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"submit_task","params":{"name":"sleep","args":[600000]}}`))
	var out struct {
		Result struct {
			ID string `json:"task_id"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(answer), &out))
	require.NotEmpty(t, out.Result.ID, "%s", answer)
	return out.Result.ID
}

// overNATS connects and returns the outcome of f, which receives the errors that the server reports to the client.
func (c *matrixClient) overNATS(f func(conn *nats.Conn, violations <-chan error) string) string {
	violations := make(chan error, 16)
	opts := []nats.Option{nats.NoReconnect(), nats.Secure(c.tls), nats.Timeout(remotetest.Patience), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case violations <- err:
		default:
		}
	})}
	if c.token != "" {
		opts = append(opts, nats.Token(c.token))
	}
	conn, err := nats.Connect(c.gw.Addresses.NATS, opts...)
	if err != nil {
		require.ErrorIs(c.t, err, nats.ErrAuthorization)
		return unauthenticated
	}
	defer conn.Close()
	return f(conn, violations)
}

// natsRequest is the outcome of a request. The server drops a request that a client may not send and reports a violation.
func natsRequest(subject, body string, header ...string) func(c *matrixClient) string {
	return func(c *matrixClient) string {
		return c.overNATS(func(conn *nats.Conn, violations <-chan error) string {
			msg := &nats.Msg{Subject: subject, Data: []byte(body), Header: nats.Header{}}
			for i := 0; i < len(header); i += 2 {
				msg.Header.Set(header[i], header[i+1])
			}
			msg.Reply = conn.NewInbox()
			answers, err := conn.SubscribeSync(msg.Reply)
			require.NoError(c.t, err)
			require.NoError(c.t, conn.PublishMsg(msg))
			// The servers of a cluster may lose a message before they know its account. Clients repeat what is not answered.
			again := time.NewTicker(5 * time.Second)
			defer again.Stop()
			for end := time.After(remotetest.Patience); ; {
				answer, err := answers.NextMsg(20 * time.Millisecond)
				if err == nil {
					if bytes.Contains(answer.Data, []byte(`"code":403`)) || answer.Header.Get("Status") == "403" {
						return refused
					}
					require.NotEqual(c.t, "503", answer.Header.Get("Status"), "%s has no receiver", subject)
					return admitted
				}
				select {
				case err := <-violations:
					require.ErrorContains(c.t, err, "ermissions")
					return refused
				case <-again.C:
					require.NoError(c.t, conn.PublishMsg(msg))
				case <-end:
					require.Fail(c.t, "no answer", subject)
					return ""
				default:
				}
			}
		})
	}
}

// prepareBins stores an item in two namespaces.
func prepareBins(t *testing.T, c *matrixClient) {
	t.Helper()
	conn, err := natslink.Connect(c.gw.Addresses.NATS, nats.Token(c.token), nats.Secure(c.tls))
	require.NoError(t, err)
	defer conn.Close()
	for _, namespace := range []string{"mine", "other"} {
		store, err := bins.Open(t.Context(), conn, bins.Options{Namespace: namespace})
		require.NoError(t, err)
		_, err = store.Append(t.Context(), "items", bins.Value{Body: []byte("item of " + namespace)})
		require.NoError(t, err)
	}
}
