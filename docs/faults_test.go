// Package docs holds the pages to the tree that they speak of.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every test that the page of faults names exists, and every fault has a test or says what is missing.
func TestFaultsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("faults.md")
	require.NoError(t, err)
	id := regexp.MustCompile(`^\| ([AWEONTS][0-9]+) `)
	name := regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`")
	seen := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		row := id.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		require.False(t, seen[row[1]], "%s is there twice", row[1])
		seen[row[1]] = true
		tests := name.FindAllStringSubmatch(line, -1)
		require.True(t, len(tests) > 0 || strings.Contains(line, "| not yet"), line)
		for _, test := range tests {
			require.Contains(t, sources(t, filepath.Join("..", test[1])), "\nfunc "+test[2]+"(", "%s names %s", row[1], test[0])
		}
	}
	require.Greater(t, len(seen), 80)
}

// sources are the tests of a package as one text.
func sources(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, folder)
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}
