package natslink

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
// the scopes allow. The gate reads messages with headers that the server executes and requests that name subjects or
// consumers, and counts the requests of clients with a quota.
//
// Clients without scopes use the server's global account. It contains the streams, or on a leaf node it is connected to
// the account of the cluster that contains them.
type accounts struct {
	ns      *server.Server
	changed func(c Client, subject string) // may be nil
	domain  string                         // of the cluster's JetStream; empty for that of the server

	mu     sync.Mutex
	gate   *nats.Conn // of the global account; nil until serveGate
	relay  *relay
	known  map[string]*clientAccount // by Client.Key
	byName map[string]*clientAccount
}

type clientAccount struct {
	name        string
	scopesText  string // its imports depend on nothing else, except for the quota
	account     *server.Account
	scopes      []scope
	published   []string // patterns of the subjects of messages to store
	permissions *server.Permissions
	secret      string // part of the subjects of its pulls
	consumers   *consumers

	client   Client    // changes when the account is reused
	identity string    // hash of the identity of client
	used     time.Time // of the latest admission

	open atomic.Int64 // requests that the gate has forwarded without an answer yet
}

// Limits of the gate.
const (
	maxAccounts     = 4096            // clients with different identities or rights
	maxOpenRequests = 8192            // of one account; the library publishes at most 4,000 messages at once
	accountIdle     = 2 * time.Minute // after which an account without connections is reused
)

// errAccounts means that no account is free.
var errAccounts = fmt.Errorf("more than %d clients with different identities or rights are connected", maxAccounts)

// gateway returns the prefix of the subjects on which the gate receives the client's requests.
func (c *clientAccount) gateway() string { return gateRoot + "." + c.name + "." }

// identityLength is the number of characters of the hash of an identity.
const identityLength = 32

func identityOf(c Client) string {
	sum := sha256.Sum256([]byte(cmp.Or(c.Identity, c.Key)))
	return hex.EncodeToString(sum[:identityLength/2])
}

// of returns the account of a client with scopes. A client gets the account of its last connection. Other clients get an
// account with the same imports that has had no connection for some time, or a new one, because the server cannot remove
// accounts.
func (a *accounts) of(c Client) (*clientAccount, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.known[c.Key]; known != nil {
		known.used = time.Now()
		return known, nil
	}
	text := fmt.Sprint(c.Scopes.Read, c.Scopes.Write, c.Count != nil)
	for key, one := range a.known {
		if one.scopesText != text || time.Since(one.used) < accountIdle || one.account.NumLocalConnections() > 0 {
			continue
		}
		one.removeConsumers()
		reused := &clientAccount{
			secret: one.secret, consumers: &consumers{}, name: one.name, scopesText: text, account: one.account, scopes: one.scopes, published: one.published, permissions: one.permissions,
			client: c, identity: identityOf(c), used: time.Now(),
		}
		delete(a.known, key)
		a.known[c.Key], a.byName[one.name] = reused, reused
		return reused, nil
	}
	if len(a.known) >= maxAccounts {
		return nil, errAccounts
	}
	made, err := a.makeLocked("CLIENT_"+strconv.Itoa(len(a.known)+1), c)
	if err != nil {
		return nil, fmt.Errorf("account of a NATS client: %w", err)
	}
	made.scopesText = text
	if a.known == nil {
		a.known, a.byName = make(map[string]*clientAccount), make(map[string]*clientAccount)
	}
	a.known[c.Key], a.byName[made.name] = made, made
	return made, nil
}

func (a *accounts) makeLocked(name string, c Client) (*clientAccount, error) {
	account, _ := a.ns.LookupOrRegisterAccount(name)
	global := a.ns.GlobalAccount()
	made := &clientAccount{name: name, client: c, identity: identityOf(c), account: account, secret: rand.Text(), consumers: &consumers{}, scopes: scopesOf(*c.Scopes), used: time.Now()}
	subscribe := []string{"_INBOX.>", "_INBOX_*.>"}
	var v services
	var live []string
	for _, s := range made.scopes {
		s.services(&v)
		if s.live() {
			live = append(live, s.subjects())
		}
	}
	made.published = v.published
	for _, subject := range widest(slices.Clone(v.published)) {
		if err := account.AddMapping(subject, withReferences(inward(subject))); err != nil {
			return nil, err
		}
	}
	direct := widest(v.direct)
	for _, subject := range direct {
		to := inDomain(a.domain, subject)
		if c.Count != nil && counted(subject) {
			to = made.gateway() + subject
		}
		if err := share(global, account, subject, to); err != nil {
			return nil, err
		}
	}
	for _, subject := range widest(v.gated) {
		if covers(direct, subject) {
			continue // the client may do all of it, and would get two answers
		}
		from := subject
		if !strings.HasPrefix(subject, api) {
			from = inward(subject)
		}
		if err := share(global, account, from, made.gateway()+subject); err != nil {
			return nil, err
		}
	}
	for _, stream := range slices.Compact(slices.Sorted(slices.Values(v.pulled))) {
		pulls := made.pulls(stream + ".*")
		if err := share(global, account, pulls, inDomain(a.domain, nextMessage+stream+".*")); err != nil {
			return nil, err
		}
		v.permitted = append(v.permitted, pulls)
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
		Publish:   &server.SubjectPermission{Allow: append([]string{"_INBOX.>", "$JS.API.INFO"}, v.permitted...)},
		Subscribe: &server.SubjectPermission{Allow: append(subscribe, live...)},
	}
	if a.gate == nil {
		return made, nil
	}
	return made, a.receive(made.name)
}

// counted reports whether a subject counts for a client's quota of requests. The pieces of a body belong to an item that
// is counted. The items that a puller requests and acknowledges were counted when they were added, and only JetStream can
// deliver them.
func counted(subject string) bool {
	switch {
	case strings.HasPrefix(subject, "$O."):
		return !strings.Contains(subject, ".C.")
	case strings.HasPrefix(subject, nextMessage):
		return false
	}
	return !strings.HasPrefix(subject, ackSubjects)
}

// inward returns the subject to which the server maps a client's publications. Listeners of the client's account do not
// receive those, only the message that the gate has checked and published.
func inward(subject string) string { return gateRoot + "." + subject }

// withReferences returns a pattern as the destination of a mapping, in which each wildcard has the number of the source's.
func withReferences(subject string) string {
	words, wildcards := strings.Split(subject, "."), 0
	for i, word := range words {
		if word == "*" {
			wildcards++
			words[i] = fmt.Sprintf("{{wildcard(%d)}}", wildcards)
		}
	}
	return strings.Join(words, ".")
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
	for name := range a.byName {
		if err := a.receive(name); err != nil {
			return err
		}
	}
	return nil
}

// receive subscribes the gate to the requests of an account. Each account has a subscription, so that a client that sends
// faster than the gate forwards loses only its own requests.
func (a *accounts) receive(name string) error {
	prefix := gateRoot + "." + name + "."
	_, err := a.gate.Subscribe(prefix+">", func(msg *nats.Msg) {
		a.mu.Lock()
		client := a.byName[name]
		a.mu.Unlock()
		if client == nil {
			return // not yet registered; the client repeats its request
		}
		subject := strings.TrimPrefix(msg.Subject, prefix)
		if code, err := a.handle(client, subject, msg); err != nil {
			refuse(msg, subject, code, err)
		}
	})
	return err
}

// handle forwards a request or a message of a client, or returns the status and the reason of its refusal.
func (a *accounts) handle(client *clientAccount, subject string, msg *nats.Msg) (int, error) {
	if client.client.Count != nil && counted(subject) {
		if err := client.client.Count(); err != nil {
			return http.StatusTooManyRequests, fmt.Errorf("%w: %w", ErrQuota, err)
		}
	}
	if client.open.Load() >= maxOpenRequests {
		return http.StatusTooManyRequests, fmt.Errorf("%w: %d requests wait for their answers", ErrQuota, maxOpenRequests)
	}
	operation, is := strings.CutPrefix(subject, api)
	if !is {
		header, err := client.checkPublication(subject, msg)
		if err != nil {
			return http.StatusForbidden, err
		}
		a.relay.send(client, inDomain(a.domain, subject), &nats.Msg{Reply: msg.Reply, Header: header, Data: msg.Data}, expected{answers: 1})
		return 0, nil
	}
	request, err := client.check(operation, msg.Data)
	if err != nil {
		return http.StatusForbidden, err
	}
	// The headers of requests are not forwarded: the server executes some, and no client needs them.
	out := &nats.Msg{Reply: msg.Reply, Data: request.body}
	switch {
	case request.consumer != "":
		return a.consumerRequest(client, subject, request, msg, out)
	case request.changes:
		client.open.Add(1)
		go func() { // ends within gateTimeout
			defer client.open.Add(-1)
			if answer := a.forward(subject, msg, out.Data); answer != nil && a.changed != nil && !failed(answer) {
				a.changed(client.client, subject)
			}
		}()
		return 0, nil
	}
	a.relay.send(client, inDomain(a.domain, subject), out, request.expected)
	return 0, nil
}

// refuse answers a request with an error, in the form that the client library expects: direct requests and pulls have
// their status in the header.
func refuse(msg *nats.Msg, subject string, code int, reason error) {
	if msg.Reply == "" {
		return
	}
	answer := &nats.Msg{Subject: msg.Reply}
	if strings.HasPrefix(subject, directGet) || strings.HasPrefix(subject, nextMessage) {
		answer.Header = nats.Header{"Status": {strconv.Itoa(code)}, "Description": {reason.Error()}}
	} else {
		answer.Data, _ = json.Marshal(map[string]any{"error": map[string]any{"code": code, "description": reason.Error()}}) // cannot fail
	}
	_ = msg.RespondMsg(answer) // best effort: the client may have left
}

// forward forwards a request and its answer, which it returns. It returns nil without an answer: the client repeats its
// request.
func (a *accounts) forward(subject string, msg *nats.Msg, body []byte) []byte {
	answer, err := a.ask(subject, body)
	if err != nil {
		return nil
	}
	_ = msg.Respond(answer) // best effort: the client may have left
	return answer
}

// ask sends a request of the gate to JetStream.
func (a *accounts) ask(subject string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), gateTimeout)
	defer cancel()
	answer, err := a.gate.RequestMsgWithContext(ctx, &nats.Msg{Subject: inDomain(a.domain, subject), Data: body})
	if err != nil {
		return nil, err
	}
	return answer.Data, nil
}

// failed reports whether an answer of JetStream is an error.
func failed(answer []byte) bool {
	var in struct {
		Error json.RawMessage `json:"error"`
	}
	return json.Unmarshal(answer, &in) != nil || in.Error != nil
}
