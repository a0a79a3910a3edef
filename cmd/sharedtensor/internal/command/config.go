package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/policyfile"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
)

const configHelp = `A policy file gives users and groups of this host rights to names and endpoints. Rules add up: a process has the rights
of all rules that match its user or one of its groups. A process without a rule cannot connect. Processes of the
owner's user have every right, unless restrict-owner is true.

  restrict-owner: false
  rules:
    - users: [trainer]            # names or numbers
      list: ["*"]                 # * stands for any characters, also for /
      publish: ["llm-*"]          # new versions, and rollback
      withdraw: ["llm-*"]
    - groups: [inference, 2000]
      acquire: ["*"]              # includes list
      call: ["embed"]
    - users: [monitor]
      info: true                  # top, holders, metrics
    - users: [worker]
      offer: ["embed"]
    - everyone: true
      list: ["public-*"]

The owner reads the file when it starts and on SIGHUP. Other users must not be able to write it.`

func newConfigCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "config",
		Short:   "Check files that configure an owner",
		Long:    configHelp,
		Example: "  sharedtensor config check policy.yaml",
		Args:    knownCommand,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConfigCheckCommand())
	return c
}

func newConfigCheckCommand() *cobra.Command {
	var user string
	var groups []string
	var asJSON bool
	c := &cobra.Command{
		Use:   "check FILE",
		Short: "Check a policy file, and show the rights that it gives",
		Long:  configHelp,
		Example: `  sharedtensor config check policy.yaml
  sharedtensor config check policy.yaml --user trainer
  sharedtensor config check policy.yaml --user 1001 --group 2000 --json`,
		Args: cli.Exactly("FILE"),
		RunE: func(c *cobra.Command, words []string) error {
			policy, err := policyfile.Load(words[0])
			if err != nil {
				return err
			}
			if user == "" && len(groups) == 0 {
				if asJSON {
					return term.PrintJSON(c.OutOrStdout(), policy)
				}
				return printPolicy(c.OutOrStdout(), words[0], policy)
			}
			who, err := subject(c, user, groups)
			if err != nil {
				return err
			}
			rights := rightsOf(policy.Of(who))
			if asJSON {
				return term.PrintJSON(c.OutOrStdout(), rights)
			}
			return printRights(c.OutOrStdout(), rights)
		},
	}
	c.Flags().StringVar(&user, "user", "", "show the rights of a process of this user")
	c.Flags().StringSliceVar(&groups, "group", nil, "show the rights of a process with this group")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// noUser is a user that no rule can name.
const noUser = 1<<32 - 1

// subject returns the process that the flags describe.
func subject(c *cobra.Command, user string, groups []string) (who access.Subject, err error) {
	who.UID = noUser
	if user != "" {
		if who.UID, err = policyfile.LookupUser(user); err != nil {
			return who, cli.Usagef(c, "--user %s: %v", user, err)
		}
	}
	for _, group := range groups {
		gid, err := policyfile.LookupGroup(group)
		if err != nil {
			return who, cli.Usagef(c, "--group %s: %v", group, err)
		}
		who.GIDs = append(who.GIDs, gid)
	}
	return who, nil
}

// right is one right of a process, with the patterns of the names that it covers.
type right struct {
	Right string   `json:"right"`
	Names []string `json:"names,omitempty"`
}

// rightsOf lists the rights of a process.
func rightsOf(g access.Grants) []right {
	list := []right{}
	for _, r := range access.Rights() {
		if names := g.Patterns(r); len(names) > 0 || (r == access.Connect || r == access.Info) && g.May(r, "") {
			list = append(list, right{r.String(), names})
		}
	}
	return list
}

func printRights(w io.Writer, list []right) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no rule matches: the owner refuses the connection")
		return err
	}
	t := term.NewTable(term.Column{Title: "RIGHT"}, term.Column{Title: "NAMES", Give: 1})
	for _, r := range list {
		t.Add(r.Right, strings.Join(r.Names, " "))
	}
	return t.Print(w)
}

// printPolicy lists the rules of a valid policy.
func printPolicy(w io.Writer, path string, policy *access.Policy) error {
	t := term.NewTable(term.Column{Title: "RULE", Align: term.Right}, term.Column{Title: "PROCESSES", Give: 1}, term.Column{Title: "RIGHTS", Give: 2})
	for i := range policy.Rules {
		r := &policy.Rules[i]
		t.Add(strconv.Itoa(i+1), processesOf(r), givenBy(r))
	}
	if len(policy.Rules) > 0 {
		if err := t.Print(w); err != nil {
			return err
		}
	}
	owner := "the owner's user has every right"
	if policy.RestrictOwner {
		owner = "the rules apply to the owner's user too"
	}
	_, err := fmt.Fprintf(w, "%s is valid: %s; %s\n", term.Printable(path), term.Count(len(policy.Rules), "rule"), owner)
	return err
}

func processesOf(r *access.Rule) string {
	var list []string
	if r.Everyone {
		list = append(list, "everyone")
	}
	for _, uid := range r.UIDs {
		list = append(list, fmt.Sprintf("uid %d", uid))
	}
	for _, gid := range r.GIDs {
		list = append(list, fmt.Sprintf("gid %d", gid))
	}
	return strings.Join(list, ", ")
}

func givenBy(r *access.Rule) string {
	var list []string
	if r.Info {
		list = append(list, "info")
	}
	for right := access.List; right <= access.Offer; right++ {
		if names := r.Patterns(right); len(names) > 0 {
			list = append(list, right.String()+": "+strings.Join(names, " "))
		}
	}
	return strings.Join(list, "; ")
}
