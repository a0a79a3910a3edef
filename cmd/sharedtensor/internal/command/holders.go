package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// holding is a session that holds a version of a model, or a managed object, as JSON.
type holding struct {
	// Name is the model, or the endpoint that made the object.
	Name string `json:"name"`
	// Version is that of a model, Object the id of an object.
	Version uint64 `json:"version,omitempty"`
	Object  string `json:"object,omitempty"`
	// State is "object" for an object, "offered" for an endpoint that the session offers.
	State string `json:"state"`
	Bytes int64  `json:"bytes"`
	// Leases of an object are references.
	endpoint.Holder
}

func newHoldersCommand() *cobra.Command {
	var o *cli.OwnerFlags
	var asJSON *bool
	c := &cobra.Command{
		Use:   "holders [flags] [NAME|ENDPOINT|ID...]",
		Short: "List who holds what: the processes that keep memory in use",
		Long: `List the sessions that hold a version of a model or a managed object: who they are, what they hold and since when. A session
is one connection of a process. As long as something has a holder, its memory stays. What is listed are the models of these
names, the objects of these endpoints and the objects with these ids, of which a beginning is enough; without any,
everything that is held. Endpoints whose functions are run by other processes than the owner are listed with those, as offered.`,
		Example: "  sharedtensor holders\n  sharedtensor holders llm --json\n  sharedtensor holders build_model\n  sharedtensor holders 5d41402a",
		RunE: func(c *cobra.Command, words []string) error {
			return o.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				list, err := askHoldings(ctx, o, client, words)
				if err != nil {
					return err
				}
				if *asJSON {
					return term.PrintJSON(c.OutOrStdout(), list)
				}
				if len(list) == 0 {
					fmt.Fprintf(c.ErrOrStderr(), "nobody holds anything on %s\n", client.Socket())
					return nil
				}
				return holdingTable(list, time.Now()).Print(c.OutOrStdout())
			})
		},
	}
	o = cli.AddOwnerFlags(c)
	asJSON = cli.JSONFlag(c)
	c.ValidArgsFunction = completeObjects(o, cli.CompleteNames(o, 0), completeEndpoints(o, 0))
	return c
}

// askHoldings asks the owner for the holders of what the words mean, or anything if there are none.
func askHoldings(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, words []string) ([]holding, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	models, err := client.List(ctx)
	if err != nil {
		return nil, err
	}
	endpoints, err := client.Endpoints(ctx)
	if err != nil {
		return nil, err
	}
	objects, err := client.Objects(ctx)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) { // an older owner tells nothing of objects
		return nil, err
	}
	if len(words) > 0 {
		if models, objects, err = meant(client, words, models, objects, endpoints); err != nil {
			return nil, err
		}
		endpoints = slices.DeleteFunc(endpoints, func(e endpoint.EndpointInfo) bool { return !slices.Contains(words, e.Name) })
	}
	return append(append(holdings(models), objectHoldings(objects)...), offerHoldings(endpoints)...), nil
}

// offerHoldings are the workers of the endpoints that are offered.
func offerHoldings(endpoints []endpoint.EndpointInfo) (list []holding) {
	for _, e := range endpoints {
		for _, w := range e.Workers {
			list = append(list, holding{Name: e.Name, State: "offered", Holder: endpoint.Holder{Process: w.Process, Session: w.Session, Since: w.Since}})
		}
	}
	return list
}

// meant selects what the words mean. A word that means nothing is an error.
func meant(client *endpoint.Client, words []string,
	models []endpoint.ModelInfo, objects []endpoint.ObjectInfo, endpoints []endpoint.EndpointInfo) ([]endpoint.ModelInfo, []endpoint.ObjectInfo, error) {
	ids := map[string]bool{}
	for _, word := range words {
		known := slices.ContainsFunc(models, func(m endpoint.ModelInfo) bool { return m.Name == word }) ||
			slices.ContainsFunc(endpoints, func(e endpoint.EndpointInfo) bool { return e.Name == word })
		if known {
			continue
		}
		object, err := findObject(objects, word)
		if err != nil {
			return nil, nil, err
		}
		if object == nil {
			return nil, nil, fmt.Errorf("%q: %w on %s: no model, endpoint or object", word, endpoint.ErrNotFound, client.Socket())
		}
		ids[object.ID] = true
	}
	models = slices.DeleteFunc(models, func(m endpoint.ModelInfo) bool { return !slices.Contains(words, m.Name) })
	objects = slices.DeleteFunc(objects, func(i endpoint.ObjectInfo) bool { return !ids[i.ID] && !slices.Contains(words, i.Endpoint) })
	return models, objects, nil
}

// holdings are the holders of all versions, by name, the newest version first.
func holdings(models []endpoint.ModelInfo) []holding {
	list := []holding{}
	for _, m := range models {
		for _, v := range m.Versions {
			for _, h := range v.Holders {
				list = append(list, holding{Name: m.Name, Version: v.Version, State: versionState(m, v), Bytes: v.Bytes, Holder: h})
			}
		}
	}
	return list
}

// objectHoldings are the holders of the objects.
func objectHoldings(objects []endpoint.ObjectInfo) (list []holding) {
	for _, o := range objects {
		for _, h := range o.Holders {
			list = append(list, holding{
				Name: o.Endpoint, Object: o.ID, State: "object", Bytes: int64(o.Bytes),
				Holder: endpoint.Holder{Process: h.Process, Session: h.Session, Leases: int(h.Refs), Since: h.Since},
			})
		}
	}
	return list
}

func holdingTable(list []holding, now time.Time) *term.Table {
	objects := slices.ContainsFunc(list, func(h holding) bool { return h.Object != "" })
	columns := []term.Column{{Title: "NAME", Give: 1}, {Title: "VERSION", Align: term.Right}, {Title: "STATE"}}
	if objects {
		columns = slices.Insert(columns, 2, term.Column{Title: "OBJECT"})
	}
	t := term.NewTable(append(columns, term.Column{Title: "BYTES", Align: term.Right}, term.Column{Title: "SESSION", Align: term.Right}, term.Column{Title: "PID", Align: term.Right},
		term.Column{Title: "LEASES", Align: term.Right}, term.Column{Title: "SINCE", Align: term.Right}, term.Column{Title: "LABEL", Give: 2})...)
	for _, h := range list {
		cells := []string{h.Name, "-", h.State}
		if h.Version > 0 {
			cells[1] = strconv.FormatUint(h.Version, 10)
		}
		if objects {
			cells = slices.Insert(cells, 2, shortID(h.Object))
		}
		t.Add(append(cells, term.FormatBytes(h.Bytes), strconv.FormatUint(h.Session, 10), strconv.Itoa(int(h.PID)), strconv.Itoa(h.Leases),
			term.FormatAge(now.Sub(h.Since)), h.Label)...)
	}
	return t
}
