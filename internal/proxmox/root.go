// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/utils/cpuset"
)

// RootUser is the only user whom Proxmox lets set affinity, hugepages and arguments
// of QEMU. It must be a login: the checks compare names, and a token of root has another one.
const RootUser = "root@pam"

// RootLogin is a login of root, for what Proxmox reserves for it. Whoever has
// the password has the Hosts, so it is asked for by itself and used for nothing else.
type RootLogin struct {
	Username string
	Password Secret
	// PasswordFile is read again for every login.
	PasswordFile string
}

// Root does what only root may. It is as narrow as that, so that nothing else can be
// done with that login.
type Root interface {
	// Bind sets a VM's affinity and hugepages. The VM must be stopped: on a
	// running one the change would wait for the next start.
	Bind(ctx context.Context, host string, vmid int, options RootOptions) error
	// SetIgnitionFile lets a VM, configured as given, find a file of the Host in its firmware
	// interface as Ignition's config; an empty path takes it back. It takes effect
	// with the next start. Other arguments of QEMU stay.
	SetIgnitionFile(ctx context.Context, host string, vmid int, config VMConfig, path string) error
	// Share lets a VM, configured as given, mount directories of the Host by plan9. It
	// takes effect with the next start. Other arguments of QEMU stay.
	Share(ctx context.Context, host string, vmid int, config VMConfig, shares []Plan9Share) error
}

// RootOptions are options of a VM that only root may set. Empty ones stay as they are.
type RootOptions struct {
	Affinity  cpuset.CPUSet
	Hugepages string
	// Digest, where given, refuses the write if the configuration changed since.
	Digest string
}

type rootClient struct{ client Client }

// HasRoot tells whether the config has a login that may set root's options: one
// for them alone, or the Cluster's own where that is root's.
func (c *ClusterConfig) HasRoot() bool { return c.Root != nil || c.Username == RootUser }

// NewRoot makes the client for root's options. It makes no call.
func NewRoot(cfg ClusterConfig, opts Options) (Root, error) {
	switch {
	case !cfg.HasRoot():
		return nil, fmt.Errorf("configuring root's client of region %q, the cloud config has no login of %s", cfg.Region, RootUser)
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
	return r.client.UpdateVM(ctx, host, vmid, ConfigChange{Set: set, Digest: options.Digest})
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

// setArgs writes arguments that are not there yet.
func (r rootClient) setArgs(ctx context.Context, host string, vmid int, config VMConfig, args string) error {
	if args == config.Options["args"] {
		return nil
	}
	change := ConfigChange{Set: map[string]string{"args": args}, Digest: config.Digest}
	if args == "" {
		change.Set, change.Delete = nil, []string{"args"}
	}
	return r.client.UpdateVM(ctx, host, vmid, change)
}

// check tells what is wrong with the login.
func (r *RootLogin) check() error {
	switch {
	case r.Username != RootUser:
		return fmt.Errorf("root.username: found %q, want %s: no other user, and no token, may set affinity, hugepages and args", r.Username, RootUser)
	case r.Password != "" && r.PasswordFile != "":
		return errors.New("root.password_file: found beside root.password: give one of them")
	case r.Password == "" && r.PasswordFile == "":
		return errors.New("root.password_file: missing: want the file with root's password, or password")
	}
	if _, err := (&source{inline: string(r.Password), path: r.PasswordFile}).read(); err != nil {
		return fmt.Errorf("root.password_file: %w: mount the file with root's password", err)
	}
	return nil
}
