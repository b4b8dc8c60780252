// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Settings are the contents of flags, environment and configuration files.
type Settings struct {
	Options *Options
	Cloud   proxmox.Config
	Catalog instancetype.Catalog
	Hosts   declared.Settings

	// files are the files that Load read.
	files []*configFile
}

// Load reads all flags, variables and files before anything starts. It returns an
// error of one line; Karpenter's own start panics on an invalid flag.
func Load(args []string) (Settings, error) {
	opts, err := parse(args)
	if err != nil {
		return Settings{}, err
	}
	// The files are read here as well, so StopOnChange finds changes since then.
	s := Settings{Options: opts, files: readConfigFiles(opts)}
	if s.Cloud, err = proxmox.LoadConfig(opts.CloudConfig); err != nil {
		return Settings{}, err
	}
	return s, s.readFiles(os.ReadFile)
}

// readFiles reads the host settings and the instance types.
func (s *Settings) readFiles(read func(path string) ([]byte, error)) error {
	o := s.Options
	if o.NodeSettingFile != "" {
		content, err := read(o.NodeSettingFile)
		if err == nil {
			s.Hosts, err = declared.ParseSettings(content)
		}
		if err != nil {
			return fmt.Errorf("reading the host settings %s: %w", o.NodeSettingFile, err)
		}
	}
	if o.InstanceTypesFile == "" {
		var err error
		s.Catalog, err = instancetype.DefaultCatalog().WithDevices(o.PCIResources)
		return err
	}
	content, err := read(o.InstanceTypesFile)
	if err == nil {
		s.Catalog, err = instancetype.Parse(content)
	}
	if err != nil {
		return fmt.Errorf("reading the instance types %s: %w", o.InstanceTypesFile, err)
	}
	return nil
}

// vmSizeAuto is the default of the setting vm-size-policy.
const vmSizeAuto = "Auto"

// InstanceTypes returns the dependencies of instance types that the settings define. Roots are
// the regions with a root login.
func (s Settings) InstanceTypes(view instancetype.Viewer, roots []string) instancetype.Deps {
	o := s.Options
	deps := instancetype.Deps{
		Inventory: view, Catalog: s.Catalog, Pricing: o.Pricing(), PCIResources: o.PCIResources, VMSizePolicy: o.VMSizePolicy,
		VMMemoryOverheadPercent: o.VMMemoryOverheadPercent, VolumeAttachmentLimits: o.VolumeAttachmentLimits,
		CPULayouts: cpuLayouts(o.NodePolicy, roots),
	}
	if o.VMSizePolicy == vmSizeAuto {
		deps.VMSizePolicy = v1alpha1.VMSizeExact
		if o.InstanceTypesFile != "" {
			deps.VMSizePolicy = v1alpha1.VMSizeInstanceType
		}
	}
	return deps
}

func parse(args []string) (*Options, error) {
	fs := &coreoptions.FlagSet{FlagSet: flag.NewFlagSet("karpenter-provider-proxmox", flag.ContinueOnError)}
	fs.SetOutput(io.Discard)
	options := &Options{}
	injectables := []coreoptions.Injectable{&coreoptions.Options{}, options}
	for _, injectable := range injectables {
		injectable.AddFlags(fs)
	}
	version := fs.Bool("version", false, "Print the version and exit.")
	err := fs.FlagSet.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(os.Stdout)
		fs.Usage()
		os.Exit(0)
	}
	if *version {
		fmt.Println(Version())
		os.Exit(0)
	}
	if rest := fs.Args(); err == nil && len(rest) > 0 { // what follows it was not parsed
		return nil, fmt.Errorf("reading flags: %q is not a flag; --help lists them", rest[0])
	}
	for _, injectable := range injectables {
		if err := injectable.Parse(fs, args...); err != nil {
			return nil, fmt.Errorf("reading flags and environment: %w; --help lists them", err)
		}
	}
	return options, nil
}
