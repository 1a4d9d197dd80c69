package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"termkeeper/migrations"
)

func versionCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version, the commit and the schema version",
		Example: "  termkeeper version",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			version, commit := buildVersion()
			_, err := fmt.Fprintf(p.stdout, "version  %s\ncommit   %s\nschema   %d\n", version, commit, migrations.Newest())
			return err
		},
	}
}

// What a build without the repository says of itself, as that of the image: the linker sets both (-X main.linkedVersion=…), and
// nothing writes them later.
var linkedVersion, linkedCommit string

// buildVersion is what the linker was told, else what the Go tool chain wrote into the program.
func buildVersion() (version, commit string) {
	version, commit = "devel", "unknown"
	if linkedVersion != "" || linkedCommit != "" {
		return cmp.Or(linkedVersion, version), cmp.Or(linkedCommit, commit)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, commit
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		version = v
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			commit += " with changes"
		}
	}
	return version, commit
}
