// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command chart writes the parts of the chart that follow from the code, so that a new setting or feature gate is in the
// chart with the next "make generate":
//
//	chart charts/karpenter-provider-proxmox
package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

// schema is what the code does not know: the rest of the values.
//
//go:embed schema.json
var schema []byte

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: chart CHART-DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	values, err := valuesSchema()
	if err != nil {
		return err
	}
	for path, content := range map[string]string{
		"templates/_settings.tpl": settingsTemplate(),
		"values.schema.json":      values,
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("making the directory of %s, %w", path, err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("writing %s, %w", path, err)
		}
	}
	return nil
}

// settingsTemplate hands each setting that is given to the controller, as its environment variable.
func settingsTemplate() string {
	var b strings.Builder
	b.WriteString(`{{/* Written by "make generate" from internal/operator/options.go. */}}
{{/* YAML has only floats to helm: 100000000 would become 1e+08. */}}
{{- define "karpenter.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "karpenter.settings" -}}
`)
	for _, option := range settings() {
		fmt.Fprintf(&b, `{{- if not (kindIs "invalid" .Values.settings.%[1]s) }}
- name: %[2]s
  value: {{ include "karpenter.plain" .Values.settings.%[1]s | quote }}
{{- end }}
`, option.ChartValue(), option.Env)
	}
	b.WriteString("{{- end }}\n")
	return b.String()
}

// valuesSchema adds settings and feature gates to the schema.
func valuesSchema() (string, error) {
	var root map[string]any
	if err := json.Unmarshal(schema, &root); err != nil {
		return "", fmt.Errorf("reading schema.json, %w", err)
	}
	into, err := properties(root, "settings")
	if err != nil {
		return "", err
	}
	for _, option := range settings() {
		into[option.ChartValue()] = map[string]any{
			"description": option.Help,
			"type":        []string{"string", "number", "boolean", "null"},
		}
	}
	gates, err := properties(map[string]any{"properties": into}, "featureGates")
	if err != nil {
		return "", err
	}
	for _, gate := range coreoptions.KarpenterFeatureGates {
		gates[strings.ToLower(gate.Name[:1])+gate.Name[1:]] = map[string]any{"description": gate.Help, "type": "boolean"}
	}
	content, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return "", fmt.Errorf("writing the schema, %w", err)
	}
	return string(content) + "\n", nil
}

// properties are those of a property.
func properties(of map[string]any, name string) (map[string]any, error) {
	all, _ := of["properties"].(map[string]any)
	one, _ := all[name].(map[string]any)
	into, ok := one["properties"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("schema.json has no properties of %s", name)
	}
	return into, nil
}

// settings are all but the cloud config, which the chart mounts.
func settings() []operator.Option {
	var out []operator.Option
	for _, option := range operator.OptionTable() {
		if option.Env != operator.CloudConfigVariable {
			out = append(out, option)
		}
	}
	return out
}
