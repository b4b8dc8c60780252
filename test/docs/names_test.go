// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// otherNames are names of kinds, feature gates of Karpenter, phases of a launch, names of Kubernetes and roles of Proxmox.
var otherNames = []string{
	"ProxmoxNodeClass", "ProxmoxTemplate", "ProxmoxUnmanagedTemplate", "NodeClaim", "NodeRepair", "StaticCapacity", "TerminateFirstDrift",
	"ReadyForProvisioning", "FitsExistingCapacity", "RequiresNewCapacity", "ConsolidationApproved", // Karpenter
	string(instance.PhaseHostWaking), string(instance.PhaseHostAwake), string(instance.PhaseBootDrive), string(instance.PhaseCertificateRequested), string(instance.PhaseCertificateApproved),
	string(instance.PhaseNodeRegistered), string(instance.PhaseNodeReady),
	"NotIn", "NotReady", "SandboxChanged", "NoAccess", "KarpenterDisk", "KarpenterHost",
}

// developerPages describe the code and its tests.
var developerPages = []string{"conformance.md", "e2e.md", "performance.md", "pvesim.md", "real-guests.md"}

// TestNames checks that every condition, reason, event, label and annotation in the documentation
// exists. The reference pages are generated from the code, so they are complete.
func TestNames(t *testing.T) {
	t.Parallel()
	names := slices.Clone(otherNames)
	for _, page := range []string{"conditions.md", "labels.md", "fields.md"} {
		for _, row := range find("(?m)^\\| `([^`]+)` \\|", read(t, "docs/reference/"+page)) {
			names = append(names, row[1])
		}
	}
	for _, value := range find("`\"(\\w+)\"`", read(t, "docs/reference/fields.md")) {
		names = append(names, value[1])
	}
	for _, reason := range power.ReasonTypes() {
		names = append(names, string(reason))
		if !strings.Contains(read(t, "docs/power.md"), "\n| `"+string(reason)+"` |") {
			t.Errorf("docs/power.md does not describe the reason %s", reason)
		}
	}
	for _, alert := range find(`- alert: (\w+)`, read(t, "charts/karpenter-provider-proxmox/files/alerts.yaml")) {
		names = append(names, alert[1])
	}
	word := regexp.MustCompile("`((?:[A-Z][a-z]+|VM|VMID|CPU|HA){2,}|" + regexp.QuoteMeta(v1alpha1.Group) + "/[a-z-]+)`")
	for _, path := range pages(t) {
		for _, found := range word.FindAllStringSubmatch(read(t, path), -1) {
			if !slices.Contains(names, found[1]) {
				t.Errorf("%s: `%s` is neither in docs/reference nor one of the other names in this test", strings.TrimPrefix(path, root+"/"), found[1])
			}
		}
	}
}

// pages returns the pages for users that are written by hand.
func pages(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("found no pages: %v", err)
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return slices.Contains(developerPages, filepath.Base(path)) })
	return append(paths, filepath.Join(root, "README.md"))
}

// TestReasons checks that the reasons of events and conditions are constants of the API, from
// which the reference is generated.
func TestReasons(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			for _, value := range reasonsIn(n) {
				t.Errorf("%s: the reason %s must be a constant in api/v1alpha1", files.Position(value.Pos()), value.Value)
			}
			return true
		})
		return nil
	})
	testenv.Must(t, err)
}

var (
	reasonLiteral   = regexp.MustCompile(`^"[A-Z][a-z]*[A-Z][A-Za-z]*"$`)
	reasonFunctions = regexp.MustCompile(`^(Set(False|Unknown|TrueWithReason|UnknownWithReason)|setUnknown|Publish|newEvent|waitingEvent|report\w*)$`)
)

// reasonsIn returns the literals that are reasons: in fields of events, and in calls that publish
// events or set conditions.
func reasonsIn(n ast.Node) []*ast.BasicLit {
	var found []*ast.BasicLit
	add := func(e ast.Expr) {
		if value, ok := e.(*ast.BasicLit); ok && reasonLiteral.MatchString(value.Value) {
			found = append(found, value)
		}
	}
	switch n := n.(type) {
	case *ast.CompositeLit:
		for _, element := range n.Elts {
			if field, ok := element.(*ast.KeyValueExpr); ok {
				if key, ok := field.Key.(*ast.Ident); ok && key.Name == "Reason" {
					add(field.Value)
				}
			}
		}
	case *ast.CallExpr:
		name := ""
		switch f := n.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.SelectorExpr:
			name = f.Sel.Name
		}
		if reasonFunctions.MatchString(name) {
			for _, argument := range n.Args {
				add(argument)
			}
		}
	}
	return found
}
