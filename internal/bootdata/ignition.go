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

// butaneVariants are those whose machines boot from what is made of them. The
// others make Kubernetes objects of OpenShift, or are for devices.
const butaneVariants = "fcos or flatcar"

// transpile makes Ignition of Butane. Contents are not compressed, so that the
// same Butane gives the same bytes whichever Go we were built with. Files of the machine that we run on are out
// of its reach: Butane's local takes effect only with a directory to take from.
func transpile(name string, out *output) ([]byte, error) {
	var head struct {
		Variant string `yaml:"variant"`
	}
	// What is wrong with the rest, Butane says better.
	if err := yamlv3.Unmarshal(out.Bytes(), &head); err == nil && head.Variant != "fcos" && head.Variant != "flatcar" {
		fault := &TemplateError{File: name, Reason: "Butane's variant must be " + butaneVariants}
		fault.Line, fault.Column = out.origin(variantLine(out.Bytes()), 0)
		return nil, fault
	}
	made, findings, err := safely(func() ([]byte, report.Report, error) {
		options := common.TranslateBytesOptions{Raw: true}
		options.NoResourceAutoCompression = true
		return config.TranslateBytes(out.Bytes(), options)
	})
	if err := judge(name, "Butane", out, findings, err); err != nil {
		return nil, err
	}
	if len(made) > MaxFileBytes {
		return nil, &TemplateError{File: name, Reason: fmt.Sprintf("becomes %d bytes of Ignition, more than the %d allowed", len(made), MaxFileBytes)}
	}
	return made, nil
}

func variantLine(content []byte) int {
	place := butaneHeader.FindIndex(content)
	if place == nil {
		return 0
	}
	return strings.Count(string(content[:place[0]]), "\n") + 1
}

// checkIgnition holds a file against Ignition's own rules.
func checkIgnition(name string, out *output) error {
	_, findings, err := safely(func() ([]byte, report.Report, error) {
		_, findings, err := ignition.Parse(out.Bytes())
		return nil, findings, err
	})
	return judge(name, "Ignition", out, findings, err)
}

var errPanicked = errors.New("it cannot be understood at all")

// safely runs a parser that was written for a command, where a panic harms nobody.
func safely(parse func() ([]byte, report.Report, error)) (made []byte, findings report.Report, err error) {
	defer func() {
		if recover() != nil {
			err = errPanicked
		}
	}()
	return parse()
}

// judge turns findings into errors.
func judge(name, language string, out *output, findings report.Report, err error) error {
	var faults []error
	for _, entry := range findings.Entries {
		reason, ok := explain(entry, out.source)
		if !ok {
			continue
		}
		fault := &TemplateError{File: name, Reason: language + reason}
		line, column := entry.Marker.Start()
		if line <= 0 { // the end came too early
			line, column = int64(bytes.Count(out.Bytes(), []byte("\n"))+1), 0
		}
		fault.Line, fault.Column = out.origin(int(line), int(column))
		faults = append(faults, fault)
	}
	if len(faults) == 0 && err != nil {
		if syntax, ok := errors.AsType[common.ErrUnmarshal](err); ok {
			err = errors.New(syntax.Detail)
		}
		if strings.HasPrefix(err.Error(), "yaml: ") {
			return yamlFailure(name, out, err)
		}
		return &TemplateError{File: name, Reason: language + ": " + withoutValues(err.Error())}
	}
	return errors.Join(faults...)
}

// explain words a finding, if it is one to fail for. A key that means nothing is
// only a warning to Butane, for people who look at its output; here nobody does,
// and the machine would lack what the key was meant to bring. Such a key is named
// only if it stands in the template itself: else it is a value in a wrong place.
func explain(entry report.Entry, source string) (string, bool) {
	if key, unused := strings.CutPrefix(entry.Message, "unused key "); unused {
		if !strings.Contains(source, key) {
			return ": a value stands where a key should", true
		}
		return fmt.Sprintf(": there is no key %q here", key), true
	}
	if !entry.Kind.IsFatal() {
		return "", false
	}
	if entry.Context.Len() == 0 {
		return ": " + withoutValues(entry.Message), true
	}
	return fmt.Sprintf(", at %s: %s", entry.Context, withoutValues(entry.Message)), true
}
