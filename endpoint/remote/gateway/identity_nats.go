package gateway

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// admitNATS returns a client of the embedded NATS server. A read-only token needs a policy that gives it subjects to
// read, because clients without scopes can publish.
func (g *Gateway) admitNATS(token string, state *tls.ConnectionState, remote, local net.Addr) (natslink.Client, error) {
	if g.ids.byUser() {
		remote = admission.WithTCPUser(remote, local)
	}
	authorization := ""
	if token != "" {
		authorization = "Bearer " + token
	}
	id, err := g.ids.identify(authorization, state, remote)
	if err != nil {
		return natslink.Client{}, err
	}
	c := natslink.Client{Name: natsName(id), Key: id.Key(), Identity: id.Key()}
	if id.Rights == nil {
		return c, id.AllowChange()
	}
	if len(id.Rights.Read)+len(id.Rights.Write) == 0 {
		return c, fmt.Errorf("%w: %s has no subjects of NATS", rights.ErrRight, id.Who())
	}
	c.Scopes = &rights.Scopes{Read: id.Rights.Read, Write: id.Rights.Write}
	if id.Rights.Quota.Requests > 0 {
		c.Count = func() error { return g.admitted.Request(id) }
	}
	c.Key += "\x00" + fmt.Sprint(c.Scopes, id.Rights.Quota.Requests)
	return c, nil
}

// natsName returns the name of an identity in NATS.
func natsName(id Identity) string { return id.Method + ":" + orString(id.Name, id.ID) }

// natsConnected writes a line about a new client of the embedded NATS server.
func (g *Gateway) natsConnected(c natslink.Client, remote net.Addr) {
	g.audit.Info("audit", "change", "connect", "protocol", "nats", "identity", c.Name, "remote", remote.String())
}

// natsChanged writes a line about a change of a stream by a client with scopes.
func (g *Gateway) natsChanged(c natslink.Client, subject string) {
	if change, is := natsChange(subject); is {
		g.audit.Info("audit", "change", change, "protocol", "nats", "subject", subject, "identity", c.Name)
	}
}

// natsAudit writes a line for each change of a stream or a consumer through the embedded NATS server: creation, update,
// purge and deletion. The server reports them with the name of the client. Messages that clients publish have no line.
func (g *Gateway) natsAudit() error {
	_, err := g.nats.Subscribe("$JS.EVENT.ADVISORY.API", func(msg *nats.Msg) {
		var event struct {
			Subject  string `json:"subject"`
			Response string `json:"response"`
			Client   struct {
				User string `json:"user"`
				Host string `json:"host"`
			} `json:"client"`
		}
		if err := json.Unmarshal(msg.Data, &event); err != nil || event.Client.User == "" || event.Client.User == ownUser || strings.Contains(event.Response, `"error":`) {
			return
		}
		if change, is := natsChange(event.Subject); is {
			g.audit.Info("audit", "change", change, "protocol", "nats", "subject", event.Subject, "identity", event.Client.User, "remote", event.Client.Host)
		}
	})
	if errors.Is(err, nats.ErrConnectionClosed) {
		return nil
	}
	return err
}

// ownUser is the name that NATS reports for the connections of this process, which have a token and no name.
const ownUser = "[REDACTED]"

// natsChanges maps the operations of JetStream that change streams to their names in the audit log.
var natsChanges = []struct{ prefix, change string }{
	{"$JS.API.STREAM.CREATE.", "create stream"},
	{"$JS.API.STREAM.UPDATE.", "update stream"},
	{"$JS.API.STREAM.DELETE.", "delete stream"},
	{"$JS.API.STREAM.PURGE.", "purge"},
	{"$JS.API.STREAM.MSG.DELETE.", "delete message"},
}

func natsChange(subject string) (string, bool) {
	for _, one := range natsChanges {
		if strings.HasPrefix(subject, one.prefix) {
			return one.change, true
		}
	}
	return "", false
}
