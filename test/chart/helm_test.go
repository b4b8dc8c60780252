// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/jsonpath"
)

const (
	chartDir    = "../../charts/karpenter-provider-proxmox"
	crdChartDir = "../../charts/karpenter-provider-proxmox-crd"
	namespace   = "kube-system"
	release     = "karpenter-provider-proxmox"
)

// helm runs helm with values on its standard input.
func helm(t *testing.T, values string, args ...string) (stdout string, err error) {
	t.Helper()
	binary := os.Getenv("HELM")
	if binary == "" {
		t.Skip("HELM is not set: run this with make unit")
	}
	cmd := exec.CommandContext(t.Context(), binary, args...)
	// Ignore the user's repositories and plugins.
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
	cmd.Stdin = strings.NewReader(values)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, problems.String())
	}
	return out.String(), nil
}

// objects are the rendered objects.
type objects []*unstructured.Unstructured

// render renders the chart.
func render(t *testing.T, values string) objects {
	t.Helper()
	out, err := helm(t, values, "template", release, chartDir, "-n", namespace, "-f", "-")
	check(t, err)
	return decode(t, out)
}

// reject returns helm's output for values that the chart must reject.
func reject(t *testing.T, values string) string {
	t.Helper()
	_, err := helm(t, values, "template", release, chartDir, "-n", namespace, "-f", "-")
	if err == nil {
		t.Fatalf("the chart accepts the values:\n%s", values)
	}
	return err.Error()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expect reports an error unless a condition is true.
func expect(t *testing.T, condition bool, format string, args ...any) {
	t.Helper()
	if !condition {
		t.Errorf(format, args...)
	}
}

func decode(t *testing.T, manifests string) objects {
	t.Helper()
	var all objects
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		check(t, err)
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

// read returns what a JSONPath selects in the objects of a kind, one per line. It is empty if
// there is none.
func (o objects) read(t *testing.T, kind, path string) string {
	t.Helper()
	parser := jsonpath.New(kind).AllowMissingKeys(true)
	check(t, parser.Parse(path))
	var found []string
	for _, object := range o {
		var b bytes.Buffer
		if object.GetKind() == kind {
			check(t, parser.Execute(&b, object.Object))
			found = append(found, b.String())
		}
	}
	return strings.Join(found, "\n")
}
