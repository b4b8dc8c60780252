// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/template"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// maxIndent bounds indent and nindent, so that a slip of the finger does not
// ask for gigabytes of blanks.
const maxIndent = 256

// functions is the vocabulary of templates besides text/template's own. All are
// pure, and none of their errors repeats an argument: arguments are secrets.
func functions() template.FuncMap {
	return template.FuncMap{
		"default":  defaultTo,
		"coalesce": coalesce,
		"ternary":  ternary,
		"empty":    empty,
		"get":      get,
		"hasKey":   hasKey,
		"hasTag":   hasTag,
		"getValue": getValue,

		"toJson":       toJSON,
		"toPrettyJson": toPrettyJSON,
		"toYaml":       toYAML,
		"toYamlPretty": toPrettyYAML,
		"toPrettyYaml": toPrettyYAML,
		"b64enc":       func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"b64dec":       base64Decode,

		"indent":     indent,
		"nindent":    nindent,
		"quote":      quote,
		"upper":      strings.ToUpper,
		"lower":      strings.ToLower,
		"trim":       strings.TrimSpace,
		"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
		"trimPrefix": func(prefix, s string) string { return strings.TrimPrefix(s, prefix) },
		"replace":    func(from, to, s string) string { return strings.ReplaceAll(s, from, to) },
		"contains":   func(substr, s string) bool { return strings.Contains(s, substr) },
		"hasPrefix":  func(prefix, s string) bool { return strings.HasPrefix(s, prefix) },
		"hasSuffix":  func(suffix, s string) bool { return strings.HasSuffix(s, suffix) },
		"split":      func(s, sep string) []string { return strings.Split(s, sep) },
		"join":       join,

		"regexFind":       func(expr, s string) (string, error) { return regexFindString(expr, s) },
		"regexFindString": regexFindString,
		"regexReplaceAll": regexReplaceAll,

		"cidrhost":  cidrHost,
		"cidrslaac": cidrSLAAC,
	}
}

func empty(value any) bool {
	truth, ok := template.IsTrue(value)
	return !ok || !truth
}

// defaultTo takes the default first, so that values are piped into it.
func defaultTo(fallback any, value ...any) any {
	if len(value) == 0 || empty(value[0]) {
		return fallback
	}
	return value[0]
}

func coalesce(values ...any) any {
	for _, v := range values {
		if !empty(v) {
			return v
		}
	}
	return nil
}

func ternary(whenTrue, whenFalse any, condition bool) any {
	if condition {
		return whenTrue
	}
	return whenFalse
}

// get answers the empty string for an absent key: it is the way to ask for one
// that may be absent.
func get(m any, key string) (any, error) {
	value, err := lookUp("get", m, key)
	if err != nil || !value.IsValid() {
		return "", err
	}
	return value.Interface(), nil
}

func hasKey(m any, key string) (bool, error) {
	value, err := lookUp("hasKey", m, key)
	return value.IsValid(), err
}

func lookUp(function string, m any, key string) (reflect.Value, error) {
	v := reflect.ValueOf(m)
	if !v.IsValid() || v.Kind() != reflect.Map || v.Type().Key().Kind() != reflect.String {
		return reflect.Value{}, fmt.Errorf("%s needs a map, for example .Values, found %T", function, m)
	}
	return v.MapIndex(reflect.ValueOf(key).Convert(v.Type().Key())), nil
}

func hasTag(tags []string, tag string) bool { return slices.Contains(tags, tag) }

// getValue picks one value from "key=value;key=value", the form of the NoCloud
// serial number.
func getValue(s, key string) string {
	for pair := range strings.SplitSeq(s, ";") {
		if k, v, found := strings.Cut(pair, "="); found && strings.TrimSpace(k) == key {
			return v
		}
	}
	return ""
}

func toJSON(value any) (string, error) {
	out, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	return string(out), nil
}

func toPrettyJSON(value any) (string, error) {
	out, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	return string(out), nil
}

// toYAML goes by way of JSON: Kubernetes types carry JSON tags only, and their
// durations and quantities become strings only there.
func toYAML(value any) (string, error) {
	out, err := yaml.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// toPrettyYAML is toYAML with lists indented below their key.
func toPrettyYAML(value any) (string, error) {
	plain, err := toYAML(value)
	if err != nil {
		return "", err
	}
	var node yamlv3.Node
	if err := yamlv3.Unmarshal([]byte(plain), &node); err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	var out bytes.Buffer
	encoder := yamlv3.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := errors.Join(encoder.Encode(&node), encoder.Close()); err != nil {
		return "", fmt.Errorf("cannot encode a %T", value)
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

func base64Decode(s string) (string, error) {
	out, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return "", errors.New("the argument is not base64")
	}
	return string(out), nil
}

func indent(blanks int, s string) (string, error) {
	if blanks < 0 || blanks > maxIndent {
		return "", fmt.Errorf("indentation %d is not between 0 and %d", blanks, maxIndent)
	}
	pad := strings.Repeat(" ", blanks)
	return pad + strings.ReplaceAll(s, "\n", "\n"+pad), nil
}

func nindent(blanks int, s string) (string, error) {
	out, err := indent(blanks, s)
	return "\n" + out, err
}

// quote makes double-quoted strings; every escape that Go writes is one that
// YAML and JSON-minded shells read the same way.
func quote(values ...any) string {
	words := make([]string, 0, len(values))
	for _, v := range values {
		if v != nil {
			words = append(words, fmt.Sprintf("%q", fmt.Sprint(v)))
		}
	}
	return strings.Join(words, " ")
}

func join(list any, sep string) (string, error) {
	v := reflect.ValueOf(list)
	if !v.IsValid() || (v.Kind() != reflect.Slice && v.Kind() != reflect.Array) {
		return "", fmt.Errorf("join needs a list, found %T", list)
	}
	words := make([]string, 0, v.Len())
	for i := range v.Len() {
		words = append(words, fmt.Sprint(v.Index(i).Interface()))
	}
	return strings.Join(words, sep), nil
}

// regexFindString finds the first match, or with a number that group of it.
func regexFindString(expr, s string, group ...int) (string, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return "", errBadRegexp
	}
	index := 0
	if len(group) > 0 {
		index = group[0]
	}
	match := re.FindStringSubmatch(s)
	if index < 0 || index >= len(match) {
		return "", nil
	}
	return match[index], nil
}

func regexReplaceAll(expr, s, replacement string) (string, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return "", errBadRegexp
	}
	return re.ReplaceAllString(s, replacement), nil
}

var errBadRegexp = errors.New("the first argument is not a valid regular expression")
