import sys

from course_lib.doctor import main

sys.exit(main(sys.argv[1:]))
