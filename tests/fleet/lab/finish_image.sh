#!/bin/sh
# Finishes Debian's image, in its root once all packages are installed: finish_image.sh CONDOR_VERSION
set -eu

# Nodes can't reach a mirror: what they install lies here, and nothing else is a source of apt's.
packages=/srv/packages
mkdir "$packages"
apt-get install --yes --no-install-recommends --download-only "condor=$1*"
mv /var/cache/apt/archives/*.deb "$packages"

# An upgrade, for those that are made unattended: version 1 is installed, 2 is to be had.
for version in 1 2; do
    mkdir -p "/tmp/$version/DEBIAN"
    cat >"/tmp/$version/DEBIAN/control" <<END
Package: lab-upgrade
Version: $version
Architecture: all
Maintainer: The lab <lab@localhost>
Description: something to upgrade
END
    dpkg-deb --build "/tmp/$version" "/tmp/lab-upgrade_${version}_all.deb"
done
dpkg --install /tmp/lab-upgrade_1_all.deb
mv /tmp/lab-upgrade_2_all.deb "$packages"
rm -r /tmp/*

cd "$packages"
apt-ftparchive packages . >Packages
echo "deb [trusted=yes] file:$packages ./" >/etc/apt/sources.list

# As AWS's images have it: the network by networkd, users' data from AWS alone.
systemctl enable systemd-networkd
echo "datasource_list: [Ec2]" >/etc/cloud/cloud.cfg.d/90_dpkg.cfg
# There is no udev in a container, and nothing is plugged into it.
sed -i '/install-hotplug/d' /etc/cloud/cloud.cfg

# What each machine has of its own.
rm -f /etc/hostname
: >/etc/machine-id
: >/etc/hosts
