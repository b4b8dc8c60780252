// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func newLinkCommand(b Binary) *cobra.Command {
	return &cobra.Command{
		Use:   "link DIR",
		Short: "Make links to this binary in DIR, for KUBEBUILDER_ASSETS or a PATH",
		Long: "Make symbolic links to this binary in DIR, one for each program in it.\n\n" +
			"envtest of controller-runtime finds etcd, kube-apiserver and kubectl there if KUBEBUILDER_ASSETS names DIR.",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("resolving %s: %w", args[0], err)
			}
			if err := link(dir, b.Programs); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "export KUBEBUILDER_ASSETS=%s\n", dir)
			return err
		},
	}
}

func link(dir string, names []string) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this binary: %w", err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("creating the directory for links: %w", err)
	}
	for _, name := range names {
		if err := replaceLink(executable, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// replaceLink renames a new link over the old one, so a concurrent start of the program always finds it.
func replaceLink(target, name string) error {
	if info, err := os.Lstat(name); err == nil && info.Mode()&os.ModeSymlink == 0 {
		return fmt.Errorf("%s exists and is not a link; remove it or name another directory", name)
	}
	fresh := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.Symlink(target, fresh); err != nil {
		return fmt.Errorf("creating the link %s: %w", name, err)
	}
	if err := os.Rename(fresh, name); err != nil {
		return errors.Join(fmt.Errorf("creating the link %s: %w", name, err), os.Remove(fresh))
	}
	return nil
}
