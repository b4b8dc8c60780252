// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"

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
	// Bind sets a VM's affinity and hugepages. The VM must be stopped: the change to a
	// running one takes effect with the next start.
	Bind(ctx context.Context, host string, vmid int, options RootOptions) error
	// SetIgnitionFile passes a file of the Host to a VM with the given config as
	// Ignition's config, through QEMU's fw_cfg. An empty path removes it. It takes
	// effect with the next start and keeps other arguments of QEMU.
	SetIgnitionFile(ctx context.Context, host string, vmid int, config VMConfig, path string) error
	// Share exports directories of the Host to a VM with the given config by plan9. It
	// takes effect with the next start and keeps other arguments of QEMU.
	Share(ctx context.Context, host string, vmid int, config VMConfig, shares []Plan9Share) error
	// SetEncryption sets the options amd-sev and intel-tdx of a VM with the given config.
	SetEncryption(ctx context.Context, host string, vmid int, config VMConfig, options map[string]string) error
}

// RootOptions are options of a VM that only root@pam may set. Empty ones are not changed.
type RootOptions struct {
	Affinity  cpuset.CPUSet
	Hugepages string
	// Digest, if set, makes the write fail with ErrConflict if the configuration has
	// changed since.
	Digest string
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

func (r rootClient) Bind(ctx context.Context, host string, vmid int, options RootOptions) error {
	set := map[string]string{}
	if !options.Affinity.IsEmpty() {
		set["affinity"] = options.Affinity.String()
	}
	if options.Hugepages != "" {
		set["hugepages"] = options.Hugepages
	}
	if len(set) == 0 {
		return nil
	}
	return r.vms.UpdateVM(ctx, host, vmid, ConfigChange{Set: set, Digest: options.Digest})
}

func (r rootClient) SetIgnitionFile(ctx context.Context, host string, vmid int, config VMConfig, path string) error {
	args, err := argsWithIgnitionFile(config, path)
	if err != nil {
		return err
	}
	return r.setArgs(ctx, host, vmid, config, args)
}

func (r rootClient) Share(ctx context.Context, host string, vmid int, config VMConfig, shares []Plan9Share) error {
	args, err := argsWithShares(config, shares)
	if err != nil {
		return err
	}
	return r.setArgs(ctx, host, vmid, config, args)
}

func (r rootClient) SetEncryption(ctx context.Context, host string, vmid int, config VMConfig, options map[string]string) error {
	return r.vms.UpdateVM(ctx, host, vmid, ConfigChange{Set: options, Digest: config.Digest})
}

// setArgs sets QEMU's arguments unless they are already set.
func (r rootClient) setArgs(ctx context.Context, host string, vmid int, config VMConfig, args string) error {
	if args == config.Options["args"] {
		return nil
	}
	change := ConfigChange{Set: map[string]string{"args": args}, Digest: config.Digest}
	if args == "" {
		change.Set, change.Delete = nil, []string{"args"}
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
