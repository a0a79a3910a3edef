package natslink

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// consumerOwner is the metadata of a consumer that holds the identity of the client that created it.
const consumerOwner = "sharedtensor-client"

// nextMessage is the prefix of pulls from consumers.
const nextMessage = api + "CONSUMER.MSG.NEXT."

// Limits of the consumers of one account, and the number of the oldest that are looked up at the limit: the server removes
// consumers without pulls.
const (
	maxConsumers   = 256 // the server allows 1,000 for a stream
	lookedUpAtOnce = 32
)

// consumers maps the consumers of an account's clients to the pulls that the server executes.
//
// A pull cannot pass the gate, because the server answers it with messages of other subjects. The account therefore
// imports pulls on a secret subject, and maps the pulls from its own consumers to that subject. The permissions allow
// neither other pulls nor, for a client that does not know the secret, the subject itself. The zero value has no consumers.
type consumers struct {
	mu    sync.Mutex
	since map[string]time.Time // creation by stream and name
}

// errConsumers means that an account has too many consumers.
var errConsumers = fmt.Errorf("a client with scopes has at most %d consumers: close some", maxConsumers)

// pulls returns the subject to which pulls from a consumer are mapped.
func (c *clientAccount) pulls(key string) string { return "sharedtensor-pull." + c.secret + "." + key }

func (c *consumers) has(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, found := c.since[key]
	return found
}

// oldest returns the oldest consumers if the limit is reached.
func (c *consumers) oldest() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.since) < maxConsumers {
		return nil
	}
	keys := make([]string, 0, len(c.since))
	for key := range c.since {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(c.since[a].UnixNano(), c.since[b].UnixNano()) })
	return keys[:lookedUpAtOnce]
}

// addConsumer lets the clients of the account pull from a consumer.
func (c *clientAccount) addConsumer(key string) error {
	c.consumers.mu.Lock()
	defer c.consumers.mu.Unlock()
	if _, found := c.consumers.since[key]; found {
		return nil
	}
	if len(c.consumers.since) >= maxConsumers {
		return errConsumers
	}
	if err := c.account.AddMapping(nextMessage+key, c.pulls(key)); err != nil {
		return err
	}
	if c.consumers.since == nil {
		c.consumers.since = make(map[string]time.Time)
	}
	c.consumers.since[key] = time.Now()
	return nil
}

func (c *clientAccount) removeConsumer(key string) {
	c.consumers.mu.Lock()
	defer c.consumers.mu.Unlock()
	if _, found := c.consumers.since[key]; found {
		delete(c.consumers.since, key)
		c.account.RemoveMapping(nextMessage + key)
	}
}

// removeConsumers removes all consumers before another client uses the account.
func (c *clientAccount) removeConsumers() {
	c.consumers.mu.Lock()
	defer c.consumers.mu.Unlock()
	for key := range c.consumers.since {
		c.account.RemoveMapping(nextMessage + key)
	}
	c.consumers.since = nil
}

// consumerLetters are the characters of names of consumers.
const consumerLetters = headerLetters + "="

var errForeignConsumer = errors.New("the consumer does not exist, or another client has created it")

// consumerRequest forwards a request for a consumer that the client has created, or creates one.
func (a *accounts) consumerRequest(client *clientAccount, subject string, in request, msg, out *nats.Msg) (int, error) {
	key := in.stream + "." + in.consumer
	if strings.Trim(in.consumer, consumerLetters) != "" || in.verb == "MSG" {
		return http.StatusForbidden, errForeignConsumer
	}
	if in.verb != "CREATE" && client.consumers.has(key) {
		if in.verb == "DELETE" {
			client.removeConsumer(key)
		}
		a.relay.send(client, inDomain(a.domain, subject), out, in.expected)
		return 0, nil
	}
	client.open.Add(1)
	go func() { // each request ends within gateTimeout
		defer client.open.Add(-1)
		switch {
		case in.verb == "CREATE":
			if code, err := a.createConsumer(client, key, subject, in, msg); err != nil {
				refuse(msg, subject, code, err)
			}
		case a.createdBy(client, key):
			a.relay.send(client, inDomain(a.domain, subject), out, in.expected)
		default:
			refuse(msg, subject, http.StatusForbidden, errForeignConsumer)
		}
	}()
	return 0, nil
}

// createConsumer creates a consumer. It fails if another client has created one with the name: the metadata differs.
func (a *accounts) createConsumer(client *clientAccount, key, subject string, in request, msg *nats.Msg) (int, error) {
	known := client.consumers.has(key)
	if !known {
		for _, old := range client.consumers.oldest() {
			if !a.createdBy(client, old) {
				client.removeConsumer(old)
			}
		}
		if err := client.addConsumer(key); err != nil {
			return http.StatusTooManyRequests, err
		}
		in.create.Action = "create"
	}
	body, err := json.Marshal(in.create)
	if err != nil {
		return http.StatusInternalServerError, err
	}
	if answer := a.forward(subject, msg, body); !known && answer != nil && failed(answer) {
		client.removeConsumer(key)
	}
	return 0, nil
}

// createdBy reports whether the client has created a consumer, from the metadata of the consumer.
func (a *accounts) createdBy(client *clientAccount, key string) bool {
	answer, err := a.ask(api+"CONSUMER.INFO."+key, nil)
	if err != nil {
		return false
	}
	var info struct {
		Config struct {
			Metadata map[string]string `json:"metadata"`
		} `json:"config"`
	}
	return json.Unmarshal(answer, &info) == nil && info.Config.Metadata[consumerOwner] == client.identity
}
