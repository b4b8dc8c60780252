// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/utils/cpuset"
)

// RootUser is the only user that may set affinity, hugepages and arguments of QEMU. It
// must be a login: Proxmox compares the user's name, and a token of root has another.
const RootUser = "root@pam"

// RootLogin is a login of root@pam for options that Proxmox reserves for it. The
// password gives full access to the Hosts, so it is configured separately and used for
// nothing else.
type RootLogin struct {
	Username string
	Password Secret
	// PasswordFile is read for every login.
	PasswordFile string
}

// Root sets the options that are reserved for root@pam, and nothing else.
type Root interface {
	// Set sets options of a VM with the given config, in one write, unless it has them. It fails with ErrConflict
	// if the config has changed since. On a running VM they take effect with the next start.
	Set(ctx context.Context, host string, vmid int, config VMConfig, options RootOptions) error
}

// RootOptions are options of a VM that only root@pam may set. Empty ones are not changed.
type RootOptions struct {
	Affinity  cpuset.CPUSet
	Hugepages string
	// Encryption are the options amd-sev and intel-tdx.
	Encryption map[string]string
	// IgnitionFile is a file of the Host that the VM gets as Ignition's config, through QEMU's fw_cfg. An empty
	// path removes it. Other arguments of QEMU are kept.
	IgnitionFile *string
	// Shares are directories of the Host that are exported to the VM by plan9, with arguments of QEMU.
	Shares []Plan9Share
}

// change returns what the config lacks.
func (o RootOptions) change(config VMConfig) (ConfigChange, error) {
	change := ConfigChange{Set: map[string]string{}, Digest: config.Digest}
	if !o.Affinity.IsEmpty() && !config.Compute().Affinity().Equals(o.Affinity) {
		change.Set["affinity"] = o.Affinity.String()
	}
	if o.Hugepages != "" && config.Compute().Hugepages() != o.Hugepages {
		change.Set["hugepages"] = o.Hugepages
	}
	for option, value := range o.Encryption {
		if config.Options[option] != value {
			change.Set[option] = value
		}
	}
	args, err := config.Options["args"], error(nil)
	if o.IgnitionFile != nil {
		args, err = argsWithIgnitionFile(args, *o.IgnitionFile)
	}
	if err == nil && len(o.Shares) > 0 {
		args, err = argsWithShares(args, o.Shares)
	}
	if args == "" && config.Options["args"] != "" {
		change.Delete = []string{"args"}
	} else if err != nil || args != config.Options["args"] {
		change.Set["args"] = args
	}
	return change, err
}

// Missing returns the names of the options that Set would change.
func (o RootOptions) Missing(config VMConfig) []string {
	change, _ := o.change(config) // Set returns the error
	return append(slices.Sorted(maps.Keys(change.Set)), change.Delete...)
}

type rootClient struct{ vms VMClient }

// HasRoot reports whether the config has a login of root@pam: a dedicated one, or the
// Cluster's own.
func (c *ClusterConfig) HasRoot() bool { return c.Root != nil || c.Username == RootUser }

// NewRoot returns the client for options that are reserved for root@pam. It makes no
// call, and fails if the config has no such login.
func NewRoot(cfg ClusterConfig, opts Options) (Root, error) {
	switch {
	case !cfg.HasRoot():
		return nil, fmt.Errorf("configuring the root client of region %q: the cloud config has no login of %s", cfg.Region, RootUser)
	case cfg.Root == nil:
		cfg.Root = &RootLogin{Username: cfg.Username, Password: cfg.Password}
	}
	login := cfg
	login.Root = nil
	login.TokenID, login.TokenSecret, login.TokenIDFile, login.TokenSecretFile = "", "", "", ""
	login.Username, login.Password, login.passwordFile = cfg.Root.Username, cfg.Root.Password, cfg.Root.PasswordFile
	c, err := New(login, opts)
	if err != nil {
		return nil, err
	}
	return rootClient{c}, nil
}

func (r rootClient) Set(ctx context.Context, host string, vmid int, config VMConfig, options RootOptions) error {
	change, err := options.change(config)
	if err != nil || len(change.Set)+len(change.Delete) == 0 {
		return err
	}
	return r.vms.UpdateVM(ctx, host, vmid, change)
}

func (r *RootLogin) check() error {
	switch {
	case r.Username != RootUser:
		return fmt.Errorf("root.username: found %q, want %s: no other user, and no token, may set affinity, hugepages and args", r.Username, RootUser)
	case r.Password != "" && r.PasswordFile != "":
		return errors.New("root.password_file: found together with root.password: set one of them")
	case r.Password == "" && r.PasswordFile == "":
		return errors.New("root.password_file: missing: want the file with root's password, or password")
	}
	if _, err := (&source{inline: string(r.Password), path: r.PasswordFile}).read(); err != nil {
		return fmt.Errorf("root.password_file: %w: mount the file with root's password", err)
	}
	return nil
}
