package command

import (
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// helpWidth is the maximum width of help: that of the narrowest common terminal.
const helpWidth = 80

// newHelpCommand returns the help command. For an unknown command it fails and suggests the nearest one.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Explain a command",
		Example: "  sharedtensor help serve",
		ValidArgsFunction: func(c *cobra.Command, words []string, prefix string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, sub := range c.Root().Commands() {
				if len(words) == 0 && sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), prefix) {
					names = append(names, sub.Name()+"\t"+sub.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, words []string) error {
			about, rest, err := c.Root().Find(words)
			if err != nil || about == nil || len(rest) > 0 {
				return knownCommand(c.Root(), words[len(words)-max(len(rest), 1):])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// fitHelp wraps the texts of a command and its subcommands to helpWidth.
func fitHelp(c *cobra.Command) {
	c.Long = reflow(c.Long, helpWidth)
	for _, sub := range c.Commands() {
		fitHelp(sub)
	}
	if c.HasParent() {
		return
	}
	template := strings.NewReplacer(".LocalFlags.FlagUsages", ".LocalFlags.FlagUsagesWrapped 80", ".InheritedFlags.FlagUsages", ".InheritedFlags.FlagUsagesWrapped 80",
		" for more information about a command.", " for more.")
	c.SetUsageTemplate(template.Replace(c.UsageTemplate()))
}

// reflow wraps the paragraphs of a text. It keeps lines that begin with a space, such as examples and tables.
func reflow(text string, width int) string {
	var out []string
	var words []string
	flush := func() {
		line := ""
		for _, word := range words {
			if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
				out, line = append(out, line), ""
			}
			if line != "" {
				line += " "
			}
			line += word
		}
		if line != "" {
			out = append(out, line)
		}
		words = nil
	}
	for _, line := range strings.Split(text, "\n") {
		if line != "" && line[0] != ' ' && !strings.HasSuffix(line, ":") {
			words = append(words, strings.Fields(line)...)
			continue
		}
		if strings.HasSuffix(line, ":") && line[0] != ' ' {
			words = append(words, strings.Fields(line)...)
			flush()
			continue
		}
		flush()
		out = append(out, line)
	}
	flush()
	return strings.Join(out, "\n")
}
