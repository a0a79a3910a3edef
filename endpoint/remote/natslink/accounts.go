package natslink

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// gateRoot is the root of the subjects of requests that the gate reads before JetStream does.
const gateRoot = "sharedtensor-gate"

// gateTimeout limits a request that the gate checks and forwards.
const gateTimeout = 5 * time.Second

// directGet is the prefix of requests that may have several answers.
const directGet = api + "DIRECT.GET."

// ackSubjects is the prefix of acknowledgements of items.
const ackSubjects = "$JS.ACK."

// accounts holds an account for each client with scopes. NATS checks the subjects that a client publishes to, but not the
// subjects that it names for answers: in a shared account, a client could let the server answer to the subject of a bin,
// which stores the answer. In a separate account, answers reach only that account. The account imports the requests that
// the scopes allow. The gate reads requests whose content names subjects, and counts the requests of clients with a
// quota.
//
// Clients without scopes use the server's global account. It contains the streams, or on a leaf node it is connected to
// the account of the cluster that contains them.
type accounts struct {
	ns      *server.Server
	changed func(c Client, subject string) // may be nil
	domain  string                         // of the cluster's JetStream; empty for that of the server

	mu    sync.Mutex
	gate  *nats.Conn // of the global account; nil until serveGate
	relay *relay
	known map[string]*clientAccount
}

type clientAccount struct {
	name        string
	client      Client
	account     *server.Account
	scopes      []scope
	permissions *server.Permissions
}

// gateway returns the prefix of the subjects on which the gate receives the client's requests.
func (c *clientAccount) gateway() string { return gateRoot + "." + c.name + "." }

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
	made := &clientAccount{name: name, client: c, account: account, scopes: c.Scopes.parse()}
	publish, subscribe := []string{"_INBOX.>", "$JS.API.INFO"}, []string{"_INBOX.>", "_INBOX_*.>"}
	var direct, checked, live []string
	for _, s := range made.scopes {
		d, c := s.services()
		direct, checked = append(direct, d...), append(checked, c...)
		if s.live() {
			live = append(live, s.subjects())
		}
	}
	for _, subject := range widest(direct) {
		to := inDomain(a.domain, subject)
		if c.Count != nil && counted(subject) {
			to = made.gateway() + subject
		}
		if err := share(global, account, subject, to); err != nil {
			return nil, err
		}
	}
	for _, subject := range widest(checked) {
		if err := share(global, account, subject, made.gateway()+subject); err != nil {
			return nil, err
		}
	}
	for _, subject := range widest(slices.Clone(live)) {
		if err := global.AddStreamExport(subject, nil); err != nil {
			return nil, err
		}
		if err := account.AddStreamImport(global, subject, ""); err != nil {
			return nil, err
		}
	}
	made.permissions = &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: slices.Concat(publish, direct, checked)},
		Subscribe: &server.SubjectPermission{Allow: append(subscribe, live...)},
	}
	if a.gate == nil {
		return made, nil
	}
	return made, a.receive(made)
}

// counted reports whether a subject counts for a client's quota of requests. The pieces of a body belong to an item that
// is counted. The items that a puller requests and acknowledges were counted when they were added, and only JetStream can
// deliver them.
func counted(subject string) bool {
	switch {
	case strings.HasPrefix(subject, "$O."):
		return !strings.Contains(subject, ".C.")
	case strings.HasPrefix(subject, api+"CONSUMER.MSG.NEXT."):
		return false
	}
	return !strings.HasPrefix(subject, ackSubjects)
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
	relay, err := newRelay(conn)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gate, a.relay = conn, relay
	for _, client := range a.known {
		if err := a.receive(client); err != nil {
			return err
		}
	}
	return nil
}

// receive subscribes the gate to the requests of a client. Each client has a subscription, so that one that sends faster
// than the gate forwards loses only its own requests.
func (a *accounts) receive(client *clientAccount) error {
	conn, relay := a.gate, a.relay
	_, err := conn.Subscribe(client.gateway()+">", func(msg *nats.Msg) {
		subject := strings.TrimPrefix(msg.Subject, client.gateway())
		if client.client.Count != nil && counted(subject) {
			if err := client.client.Count(); err != nil {
				refuse(msg, subject, http.StatusTooManyRequests, fmt.Errorf("%w: %w", ErrQuota, err))
				return
			}
		}
		if request, is := strings.CutPrefix(subject, api); is {
			if err := client.check(request, msg.Data); err != nil {
				refuse(msg, subject, http.StatusForbidden, err)
				return
			}
		}
		if strings.HasPrefix(subject, api+"STREAM.PURGE.") {
			go a.forward(conn, client, subject, msg) // ends within gateTimeout
			return
		}
		_ = relay.send(inDomain(a.domain, subject), msg, strings.HasPrefix(subject, directGet)) // the client repeats a lost request
	})
	return err
}

// refuse answers a request with an error, in the form that the client library expects: direct requests have their status
// in the header.
func refuse(msg *nats.Msg, subject string, code int, reason error) {
	if msg.Reply == "" {
		return
	}
	answer := &nats.Msg{Subject: msg.Reply}
	if strings.HasPrefix(subject, directGet) {
		answer.Header = nats.Header{"Status": {strconv.Itoa(code)}, "Description": {reason.Error()}}
	} else {
		answer.Data, _ = json.Marshal(map[string]any{"error": map[string]any{"code": code, "description": reason.Error()}}) // cannot fail
	}
	_ = msg.RespondMsg(answer) // best effort: the client may have left
}

// forward forwards a purge and reports it.
func (a *accounts) forward(conn *nats.Conn, client *clientAccount, subject string, msg *nats.Msg) {
	ctx, cancel := context.WithTimeout(context.Background(), gateTimeout)
	defer cancel()
	answer, err := conn.RequestMsgWithContext(ctx, &nats.Msg{Subject: inDomain(a.domain, subject), Header: msg.Header, Data: msg.Data})
	if err != nil {
		return // the client repeats its request
	}
	_ = msg.Respond(answer.Data) // best effort: the client may have left
	if a.changed != nil && !bytes.Contains(answer.Data, []byte(`"error":`)) {
		a.changed(client.client, subject)
	}
}

// check returns an error if a request to JetStream exceeds the scopes of the client. The account has checked the stream.
func (c *clientAccount) check(operation string, request []byte) error {
	words := strings.SplitN(operation, ".", 4)
	name := strings.Join(words[:min(2, len(words))], ".")
	switch {
	case name == "DIRECT.GET" && len(words) == 3:
		return c.checkRead(words[2], request)
	case name == "DIRECT.GET", name == "STREAM.INFO", name == "CONSUMER.INFO", name == "CONSUMER.DELETE":
		return nil // the subject contains all that is requested
	case name == "STREAM.MSG" && len(words) == 4 && words[2] == "GET":
		return c.checkRead(words[3], request)
	case name == "CONSUMER.CREATE" && len(words) > 2:
		return c.checkConsumer(words[2], request)
	case name == "STREAM.PURGE" && len(words) == 3:
		return c.checkPurge(words[2], request)
	}
	return fmt.Errorf("the request %s is not allowed", operation)
}

// checkRead admits reading of messages on subjects of the client's scopes.
func (c *clientAccount) checkRead(stream string, request []byte) error {
	allowed := c.readable(stream)
	if slices.Contains(allowed, everything) {
		return nil
	}
	var in struct {
		Last     string          `json:"last_by_subj"`
		Next     string          `json:"next_by_subj"`
		Several  []string        `json:"multi_last"`
		Sequence json.RawMessage `json:"seq"` // of the first message
		Batch    json.RawMessage `json:"batch"`
		MaxBytes json.RawMessage `json:"max_bytes"`
	}
	fields := json.NewDecoder(bytes.NewReader(request))
	fields.DisallowUnknownFields() // one may select messages in another way
	if err := fields.Decode(&in); err != nil {
		return fmt.Errorf("a request to read: %w", err)
	}
	subjects := in.Several
	if one := cmp.Or(in.Last, in.Next); one != "" || len(subjects) == 0 { // the server refuses a request with both
		subjects = append(subjects, cmp.Or(one, everything))
	}
	for _, subject := range subjects {
		if !covers(allowed, subject) {
			return fmt.Errorf("the client may read %v of stream %s, not %q", allowed, stream, subject)
		}
	}
	return nil
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
		case s.addOnly:
		case s.rest == everything && (s.stream() == stream || s.bodies() == stream):
			return []string{everything}
		case s.stream() == stream && s.rest != everything:
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
		case (s.bodies() == stream || s.stream() == stream) && s.rest == everything && !s.addOnly:
			return nil
		case s.bodies() == stream && !strings.ContainsAny(in.Filter, "*>"):
			return nil
		case s.stream() == stream && !s.addOnly && covers([]string{s.subjects(), "bin-take." + s.namespace + "." + s.rest}, in.Filter):
			return nil
		}
	}
	return fmt.Errorf("the client may not remove %q from stream %s", in.Filter, stream)
}
