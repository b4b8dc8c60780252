// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// commandLines returns the commands of all shell and console blocks and of the chart's notes,
// with continued lines joined and comments and prompts removed.
func commandLines(t *testing.T) map[string][]string {
	t.Helper()
	lines := map[string][]string{}
	add := func(where, content string) {
		for _, line := range strings.Split(strings.ReplaceAll(content, "\\\n", " "), "\n") {
			line, _, _ = strings.Cut(line, " #")
			lines[where] = append(lines[where], strings.TrimPrefix(strings.TrimSpace(line), "$ "))
		}
	}
	for _, b := range blocks(t, "shell", "console") {
		add(b.String(), b.content)
	}
	add("NOTES.txt", read(t, "charts/karpenter-provider-proxmox/templates/NOTES.txt"))
	return lines
}

// TestKubectlCommands checks that the kinds in kubectl commands exist and that the flags can
// be combined.
func TestKubectlCommands(t *testing.T) {
	t.Parallel()
	kinds := servedKinds(t)
	command := regexp.MustCompile(`^kubectl(?: -n \S+)? (get|describe|delete|annotate|label|edit|wait|patch) (.+)$`)
	found := 0
	for where, lines := range commandLines(t) {
		for _, line := range lines {
			match := command.FindStringSubmatch(line)
			if match == nil {
				continue
			}
			found++
			words := slices.DeleteFunc(strings.Fields(match[2]), func(w string) bool { return strings.HasPrefix(w, "-") })
			if len(words) == 0 || strings.HasPrefix(match[2], "-f ") {
				continue
			}
			resources := strings.Split(words[0], ",")
			if strings.Contains(line, " -w") && len(resources) > 1 {
				t.Errorf("%s: %q: kubectl can watch only one kind", where, line)
			}
			for _, kind := range resources {
				if kind, _, _ = strings.Cut(kind, "/"); !kinds[kind] && !strings.Contains(kind, "$") {
					t.Errorf("%s: %q: kind %q does not exist", where, line, kind)
				}
			}
		}
	}
	expect(t, found >= 10, "found %d kubectl commands, want at least 10", found)
}

// servedKinds returns all names that kubectl accepts for kinds.
func servedKinds(t *testing.T) map[string]bool {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(testenv.APIServer(t))
	testenv.Must(t, err)
	all, err := client.ServerPreferredResources()
	testenv.Must(t, err)
	kinds := map[string]bool{}
	for _, list := range all {
		for _, resource := range list.APIResources {
			for _, name := range append(resource.ShortNames, resource.Name, resource.SingularName) {
				kinds[name] = true
			}
		}
	}
	return kinds
}

// TestRolesConsistent checks that all pages grant a role the same privileges.
func TestRolesConsistent(t *testing.T) {
	t.Parallel()
	first := map[string][2]string{}
	for where, lines := range commandLines(t) {
		for _, match := range find(`(?m)^pveum role add (\S+) -privs "(.+)"$`, strings.Join(lines, "\n")) {
			if known, ok := first[match[1]]; ok && known[1] != match[2] {
				t.Errorf("role %s differs: %s has %q, %s has %q", match[1], where, match[2], known[0], known[1])
			}
			first[match[1]] = [2]string{where, match[2]}
		}
	}
	expect(t, first["Karpenter"] != [2]string{}, "found roles %v, want Karpenter among them", first)
}
