// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/coreos/butane/config"
	"github.com/coreos/butane/config/common"
	ignition "github.com/coreos/ignition/v2/config"
	"github.com/coreos/vcontext/report"
	yamlv3 "go.yaml.in/yaml/v3"
)

// butaneVariants are the variants for machines that boot from Ignition. Others generate
// OpenShift objects or are for devices.
const butaneVariants = "fcos or flatcar"

// transpile converts Butane to Ignition. Contents are not compressed, so the same Butane
// results in the same bytes with every Go version. Local files of the controller cannot
// be included: Butane's local key needs a files directory, which is not set.
func transpile(name string, out *output) ([]byte, error) {
	var head struct {
		Variant string `yaml:"variant"`
	}
	// Other errors are reported by Butane.
	if err := yamlv3.Unmarshal(out.Bytes(), &head); err == nil && head.Variant != "fcos" && head.Variant != "flatcar" {
		templateErr := &TemplateError{File: name, Reason: "Butane's variant must be " + butaneVariants}
		templateErr.Line, templateErr.Column = out.origin(variantLine(out.Bytes()), 0)
		return nil, templateErr
	}
	transpiled, findings, err := recoverPanic(func() ([]byte, report.Report, error) {
		options := common.TranslateBytesOptions{Raw: true}
		options.NoResourceAutoCompression = true
		return config.TranslateBytes(out.Bytes(), options)
	})
	if err := newFindingsError(name, "Butane", out, findings, err); err != nil {
		return nil, err
	}
	if len(transpiled) > MaxFileBytes {
		return nil, &TemplateError{File: name, Reason: fmt.Sprintf("becomes %d bytes of Ignition, the limit is %d", len(transpiled), MaxFileBytes)}
	}
	return transpiled, nil
}

func variantLine(content []byte) int {
	match := butaneHeader.FindIndex(content)
	if match == nil {
		return 0
	}
	return strings.Count(string(content[:match[0]]), "\n") + 1
}

// checkIgnition validates a file with Ignition's parser.
func checkIgnition(name string, out *output) error {
	_, findings, err := recoverPanic(func() ([]byte, report.Report, error) {
		_, findings, err := ignition.Parse(out.Bytes())
		return nil, findings, err
	})
	return newFindingsError(name, "Ignition", out, findings, err)
}

var errPanicked = errors.New("the file cannot be parsed")

// recoverPanic runs a parser and returns its panic as an error.
func recoverPanic(parse func() ([]byte, report.Report, error)) (transpiled []byte, findings report.Report, err error) {
	defer func() {
		if recover() != nil {
			err = errPanicked
		}
	}()
	return parse()
}

// newFindingsError returns the fatal findings as errors, or nil.
func newFindingsError(name, language string, out *output, findings report.Report, err error) error {
	var errs []error
	for _, entry := range findings.Entries {
		reason, ok := describeFinding(entry, out.source)
		if !ok {
			continue
		}
		templateErr := &TemplateError{File: name, Reason: language + reason}
		line, column := entry.Marker.Start()
		if line <= 0 { // unexpected end of the file
			line, column = int64(bytes.Count(out.Bytes(), []byte("\n"))+1), 0
		}
		templateErr.Line, templateErr.Column = out.origin(int(line), int(column))
		errs = append(errs, templateErr)
	}
	if len(errs) == 0 && err != nil {
		if syntax, ok := errors.AsType[common.ErrUnmarshal](err); ok {
			err = errors.New(syntax.Detail)
		}
		if strings.HasPrefix(err.Error(), "yaml: ") {
			return newYAMLError(name, out, err)
		}
		return &TemplateError{File: name, Reason: language + ": " + redactValues(err.Error())}
	}
	return errors.Join(errs...)
}

// describeFinding returns the message of a fatal finding. An unknown key is only a
// warning in Butane; here it is fatal because warnings are not shown and the machine would
// lack the configuration. The key is included only if it is part of the template:
// otherwise it is a value.
func describeFinding(entry report.Entry, source string) (string, bool) {
	if key, unused := strings.CutPrefix(entry.Message, "unused key "); unused {
		if !strings.Contains(source, key) {
			return ": a value is used as a key", true
		}
		return fmt.Sprintf(": there is no key %q here", key), true
	}
	if !entry.Kind.IsFatal() {
		return "", false
	}
	if entry.Context.Len() == 0 {
		return ": " + redactValues(entry.Message), true
	}
	return fmt.Sprintf(", at %s: %s", entry.Context, redactValues(entry.Message)), true
}
