package natslink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// gateRoot is the root of the subjects of requests that the gate reads before JetStream does.
const gateRoot = "sharedtensor-gate"

// gateTimeout limits a request that the gate forwards.
const gateTimeout = 5 * time.Second

// accounts holds an account for each client with scopes. NATS checks the subjects that a client publishes to, but not
// those that it names for answers: in a shared account, a client could let the server answer to the subject of a bin,
// which stores the answer. In a separate account, answers reach only that account. The account imports the requests that
// the scopes allow. The gate reads requests whose content names subjects.
//
// Streams are in the server's global account, which clients without scopes use.
type accounts struct {
	ns      *server.Server
	changed func(c Client, subject string) // may be nil

	mu    sync.Mutex
	known map[string]*clientAccount
}

type clientAccount struct {
	client      Client
	account     *server.Account
	scopes      []scope
	permissions *server.Permissions
}

// of returns the account of a client with scopes.
func (a *accounts) of(c Client) (*clientAccount, error) {
	sum := sha256.Sum256([]byte(c.Key))
	name := "CLIENT_" + hex.EncodeToString(sum[:16])
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.known[name]; known != nil {
		return known, nil
	}
	made, err := a.makeLocked(name, c)
	if err != nil {
		return nil, fmt.Errorf("account of a NATS client: %w", err)
	}
	if a.known == nil {
		a.known = make(map[string]*clientAccount)
	}
	a.known[name] = made
	return made, nil
}

func (a *accounts) makeLocked(name string, c Client) (*clientAccount, error) {
	account, _ := a.ns.LookupOrRegisterAccount(name)
	global := a.ns.GlobalAccount()
	made := &clientAccount{client: c, account: account, scopes: c.Scopes.parse()}
	publish, subscribe := []string{"_INBOX.>", "$JS.API.INFO"}, []string{"_INBOX.>", "_INBOX_*.>"}
	var direct, checked []string
	for _, s := range made.scopes {
		d, c := s.services()
		direct, checked = append(direct, d...), append(checked, c...)
		subscribe = append(subscribe, s.subjects())
	}
	for _, subject := range widest(direct) {
		if err := share(global, account, subject, subject); err != nil {
			return nil, err
		}
	}
	for _, subject := range widest(checked) {
		to := gateRoot + "." + name + "." + strings.TrimPrefix(subject, "$JS.API.")
		if err := share(global, account, subject, to); err != nil {
			return nil, err
		}
	}
	var live []string
	for _, s := range made.scopes {
		live = append(live, s.subjects())
	}
	for _, subject := range widest(live) {
		if err := global.AddStreamExport(subject, nil); err != nil {
			return nil, err
		}
		if err := account.AddStreamImport(global, subject, ""); err != nil {
			return nil, err
		}
	}
	publish = append(append(publish, direct...), checked...)
	made.permissions = &server.Permissions{
		Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe},
	}
	return made, nil
}

// share lets the clients of an account send requests on a subject, which arrive in the global account on another one.
func share(global, account *server.Account, subject, to string) error {
	if err := global.AddServiceExportWithResponse(to, server.Streamed, nil); err != nil {
		return err
	}
	return account.AddServiceImport(global, subject, to)
}

// widest removes subjects that other subjects of the list cover.
func widest(subjects []string) (list []string) {
	slices.Sort(subjects)
	subjects = slices.Compact(subjects)
	for i, one := range subjects {
		if !covers(slices.Concat(subjects[:i], subjects[i+1:]), one) {
			list = append(list, one)
		}
	}
	return list
}

// serveGate checks and forwards requests of clients with scopes. conn is a connection of the global account.
func (a *accounts) serveGate(conn *nats.Conn) error {
	_, err := conn.Subscribe(gateRoot+".>", func(msg *nats.Msg) {
		go a.forward(conn, msg) // ends within gateTimeout
	})
	return err
}

func (a *accounts) forward(conn *nats.Conn, msg *nats.Msg) {
	parts := strings.SplitN(msg.Subject, ".", 3)
	if len(parts) < 3 {
		return
	}
	a.mu.Lock()
	client := a.known[parts[1]]
	a.mu.Unlock()
	if client == nil {
		return
	}
	if err := client.check(parts[2], msg.Data); err != nil {
		refusal, _ := json.Marshal(map[string]any{"error": map[string]any{"code": 403, "description": err.Error()}}) // cannot fail
		_ = msg.Respond(refusal)                                                                                     // best effort: the client may have left
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), gateTimeout)
	defer cancel()
	answer, err := conn.RequestMsgWithContext(ctx, &nats.Msg{Subject: "$JS.API." + parts[2], Header: msg.Header, Data: msg.Data})
	if err != nil {
		return // the client repeats its request
	}
	_ = msg.Respond(answer.Data) // best effort: the client may have left
	if a.changed != nil && strings.HasPrefix(parts[2], "STREAM.") && !bytes.Contains(answer.Data, []byte(`"error":`)) {
		a.changed(client.client, "$JS.API."+parts[2])
	}
}

// check returns an error if a request exceeds the scopes of the client. The account has checked the stream.
func (c *clientAccount) check(operation string, request []byte) error {
	words := strings.Split(operation, ".")
	if len(words) < 3 {
		return fmt.Errorf("the request %s is not allowed", operation)
	}
	switch words[0] + "." + words[1] {
	case "CONSUMER.CREATE":
		return c.checkConsumer(words[2], request)
	case "STREAM.PURGE":
		return c.checkPurge(words[2], request)
	}
	return fmt.Errorf("the request %s is not allowed", operation)
}

// checkConsumer admits pull consumers for subjects of the client's scopes. The server would send the messages of a push
// consumer to any subject.
func (c *clientAccount) checkConsumer(stream string, request []byte) error {
	var in struct {
		Config struct {
			Deliver string   `json:"deliver_subject"`
			Filter  string   `json:"filter_subject"`
			Filters []string `json:"filter_subjects"`
			Durable string   `json:"durable_name"`
		} `json:"config"`
	}
	if err := json.Unmarshal(request, &in); err != nil {
		return fmt.Errorf("a consumer: %w", err)
	}
	if in.Config.Deliver != "" { // readers of bodies then request their pieces
		return fmt.Errorf("a client with scopes may only create pull consumers, not one that delivers to %q", in.Config.Deliver)
	}
	filters := in.Config.Filters
	if in.Config.Filter != "" || len(filters) == 0 {
		filters = append(filters, in.Config.Filter)
	}
	allowed := c.readable(stream)
	for _, filter := range filters {
		if filter == "" {
			filter = everything
		}
		if !covers(allowed, filter) {
			return fmt.Errorf("the client may read %v of stream %s, not %q", allowed, stream, filter)
		}
	}
	return nil
}

// readable returns the subjects of a stream that the client may read.
func (c *clientAccount) readable(stream string) (subjects []string) {
	for _, s := range c.scopes {
		switch {
		case s.stream() != stream:
		case s.rest == everything:
			return []string{everything}
		default:
			subjects = append(subjects, s.subjects(), "bin-take."+s.namespace+"."+s.rest, "*."+s.namespace+"."+s.rest)
		}
	}
	return subjects
}

// checkPurge admits purges of subjects of the client's scopes, and of single bodies.
func (c *clientAccount) checkPurge(stream string, request []byte) error {
	var in struct {
		Filter string `json:"filter"`
	}
	if len(request) > 0 {
		if err := json.Unmarshal(request, &in); err != nil {
			return fmt.Errorf("a purge: %w", err)
		}
	}
	if in.Filter == "" {
		in.Filter = everything
	}
	for _, s := range c.scopes {
		switch {
		case !s.write:
		case s.bodies() == stream && s.rest == everything, s.stream() == stream && s.rest == everything:
			return nil
		case s.bodies() == stream && !strings.ContainsAny(in.Filter, "*>"):
			return nil
		case s.stream() == stream && covers([]string{s.subjects(), "bin-take." + s.namespace + "." + s.rest}, in.Filter):
			return nil
		}
	}
	return fmt.Errorf("the client may not remove %q from stream %s", in.Filter, stream)
}
