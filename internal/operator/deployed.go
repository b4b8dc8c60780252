// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Deployed is a controller that runs in another process.
type Deployed struct {
	Args []string
	Env  map[string]string
	// ReadFile returns the content of a file of the controller.
	ReadFile func(path string) ([]byte, error)
}

// Settings returns the settings of the controller. It fails if a setting is invalid or a
// file cannot be read.
func (d Deployed) Settings() (Settings, error) {
	s, _, err := d.SettingsWithoutClusters()
	if err != nil {
		return Settings{}, err
	}
	content, err := d.ReadFile(s.Options.CloudConfig)
	if err == nil {
		s.Cloud, err = proxmox.ParseConfigWithFiles(content, d.ReadFile)
	}
	if err != nil {
		return Settings{}, fmt.Errorf("reading the controller's cloud config %s: %w", s.Options.CloudConfig, err)
	}
	return s, nil
}

// SettingsWithoutClusters returns the settings of the controller without the cloud config,
// and the settings of Karpenter.
func (d Deployed) SettingsWithoutClusters() (Settings, *coreoptions.Options, error) {
	options, core, err := d.options()
	if err != nil {
		return Settings{}, nil, fmt.Errorf("reading the controller's flags and environment: %w", err)
	}
	s := Settings{Options: options}
	return s, core, s.readFiles(d.ReadFile)
}

// OptionEnv returns the variables of the environment that set an option. Others may be
// confidential.
func (d Deployed) OptionEnv() map[string]string {
	fs := newCoreFlags(&coreoptions.Options{})
	env := map[string]string{}
	add := func(name string) {
		if value := d.Env[name]; value != "" {
			env[name] = value
		}
	}
	fs.VisitAll(func(f *flag.Flag) { add(coreVariable(f)) })
	for _, option := range OptionTable() {
		add(option.Env)
	}
	return env
}

// HasOnlyKnownFlags reports whether the controller has all flags of the arguments. Otherwise
// they may be those of another program.
func (d Deployed) HasOnlyKnownFlags() bool {
	fs := newCoreFlags(&coreoptions.Options{})
	known := map[string]bool{}
	fs.VisitAll(func(f *flag.Flag) { known[f.Name] = true })
	for _, option := range OptionTable() {
		known[option.Flag] = true
	}
	for _, arg := range d.Args {
		if name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); strings.HasPrefix(arg, "-") && !known[name] {
			return false
		}
	}
	return true
}

// SystemNamespace returns the namespace of the controller's own ConfigMaps. It fails if a flag or
// variable is invalid.
func (d Deployed) SystemNamespace() (string, error) {
	options, _, err := d.options()
	if err != nil {
		return "", fmt.Errorf("reading the controller's flags and environment: %w", err)
	}
	return options.SystemNamespace, nil
}

// newCoreFlags returns the flags of Karpenter, which set the options.
func newCoreFlags(core *coreoptions.Options) *coreoptions.FlagSet {
	fs := &coreoptions.FlagSet{FlagSet: flag.NewFlagSet("controller", flag.ContinueOnError)}
	fs.SetOutput(io.Discard)
	core.AddFlags(fs)
	return fs
}

// coreVariable returns the environment variable of a flag of Karpenter.
func coreVariable(f *flag.Flag) string { return strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")) }

// options parses flags and environment. A flag takes precedence over its variable.
func (d Deployed) options() (*Options, *coreoptions.Options, error) {
	own, core := &Options{}, &coreoptions.Options{}
	fs := newCoreFlags(core)
	var problems []error
	fs.VisitAll(func(f *flag.Flag) {
		if value := d.Env[coreVariable(f)]; value != "" {
			problems = append(problems, fs.Set(f.Name, value))
		}
	})
	own.addFlags(fs, func(variable string) string { return d.Env[variable] })
	for _, problem := range own.problems {
		problems = append(problems, errors.New(problem))
	}
	return own, core, errors.Join(append(problems, core.Parse(fs, d.Args...))...)
}
